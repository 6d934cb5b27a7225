"""Changes of a plan: all that are one step away, and the fastest one that makes a refused plan possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from parallel_core.plan.cluster import search
from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import RECOMPUTE, STATES, Plan, Plans, scheduled
from parallel_core.rules import divisors
from parallel_core.schedule.traits import TRAITS

Step = tuple[str, dict[str, Any]]
"""A change in words, and the fields of Plan that it sets."""


@dataclass(frozen=True, slots=True)
class Change:
    """A possible plan that differs from the one asked about by `text`; `peak` in bytes, `seconds` a step."""

    text: str
    plan: Plan
    peak: float
    seconds: float


def cheapest(job: Job, cluster: Cluster, plan: Plan) -> Change | None:
    """The fastest possible plan one change away; two changes where no single one suffices; None where there is none."""
    steps = list(_steps(job, cluster, plan))
    made = [(text, replace(plan, **fields)) for text, fields in steps]
    return _fastest(job, cluster, made) or _fastest(
        job,
        cluster,
        [
            (f"{a} and {b}", replace(plan, **{**first, **second}))
            for (a, first), (b, second) in combinations(steps, 2)
            if not set(first) & set(second)
        ],
    )


def better(job: Job, cluster: Cluster, plan: Plan, seconds: float) -> Change | None:
    """The fastest possible plan one change away that takes less than `seconds` and no more devices, if any."""
    made = [(text, replace(plan, **fields)) for text, fields in _steps(job, cluster, plan) if "state" not in fields]
    found = _fastest(job, cluster, [(text, other) for text, other in made if other.devices <= plan.devices])
    return found if found and found.seconds < seconds else None


def _fastest(job: Job, cluster: Cluster, made: list[tuple[str, Plan]]) -> Change | None:
    if not made:
        return None
    _, peak, seconds, order = search.evaluate(job, cluster, Plans.of([plan for _, plan in made]))
    if not len(order):
        return None
    i = int(order[0])
    return Change(*made[i], float(peak[i]), float(seconds[i]))


def _steps(job: Job, cluster: Cluster, plan: Plan) -> Iterator[Step]:
    """All single changes. A wider split takes devices from the replicas, or more of the cluster's devices; a plan of
    more devices than there are may have fewer replicas."""
    for kind in RECOMPUTE:
        if kind != plan.recompute:
            yield f"{kind if kind != 'none' else 'no'} recomputation", {"recompute": kind}
    if plan.tp > 1:
        split = not plan.sequence_parallel
        pairs = {"by_columns": False} if plan.by_columns else {}
        yield f"{'' if split else 'no '}sequence parallel", {"sequence_parallel": split, **pairs}
    if plan.by_columns:
        yield "column-row pairs", {"by_columns": False}
    if plan.dp > 1:
        yield from ((f"ZeRO-{z}" if z else "no ZeRO", {"zero": z}) for z in range(4) if z != plan.zero)
    # All that divide the whole batch: together with another change the replicas may be fewer.
    sizes = search.micro_batches(job.batch, 1)
    yield from ((f"micro-batch {size}", {"micro_batch": size}) for size in sizes if size != plan.micro_batch)
    for name, v in _SCHEDULES if plan.pp > 1 else ():
        if (name, v) != (plan.schedule, plan.chunks):
            yield scheduled(name, v), {"schedule": name, "chunks": v}
    if plan.devices > cluster.devices:
        most = cluster.devices // (plan.tp * plan.pp)
        yield from ((f"DP {dp}", _replicas(dp)) for dp in divisors(job.batch) if dp <= most)
    for axis, mine in (("TP", plan.tp), ("PP", plan.pp)):
        yield from _splits(job, cluster, plan, axis, mine)
    if not plan.offload:
        yield "optimizer offload", {"offload": True}
    optimizer = STATES[plan.state].optimizer_name
    if below := [key for key, state in STATES.items() if key < plan.state and state.optimizer_name == optimizer]:
        yield f"{max(below)} bytes a parameter", {"state": max(below)}


_SCHEDULES = tuple(
    (name, chunks)
    for name in search.Space().schedules
    for chunks in ((2, 4) if TRAITS[name].most is None else (TRAITS[name].chunks,))
)
"""Schedules that a search combines by default, with some of the numbers of chunks that each can have."""


def _splits(job: Job, cluster: Cluster, plan: Plan, axis: str, mine: int) -> Iterator[Step]:
    """Other widths of one axis, which divide the plan's devices or the cluster's: on as many devices as the plan; on
    all of the cluster's where they do not divide those, or there are fewer."""
    most = 64 if axis == "TP" else min(128, job.model.layers)
    other = plan.tp * plan.pp // mine
    for wide in sorted({*divisors(plan.devices), *divisors(cluster.devices)}):
        if wide == mine or wide > most:
            continue
        own = plan.devices <= cluster.devices and plan.devices % (wide * other) == 0
        dp = (plan.devices if own else cluster.devices) // (wide * other)
        if dp >= 1:
            yield f"{axis} {wide}", {axis.lower(): wide, **_replicas(dp)}


def _replicas(dp: int) -> dict[str, Any]:
    """The fields of a plan with so many replicas: one alone shares no state with others."""
    return {"dp": dp} if dp > 1 else {"dp": dp, "zero": 0}
