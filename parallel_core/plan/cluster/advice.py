"""The part of a plan's step that costs most time besides compute, and the first change to try."""

from __future__ import annotations

from dataclasses import dataclass, replace

from parallel_core.analysis.quantities import percent_text, plural_text, seconds_text
from parallel_core.plan.cluster import step
from parallel_core.plan.cluster.changes import Change, better
from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import Plan, Plans
from parallel_core.plan.cluster.step import WORDS

WORTH = 0.005
"""Changes that save less than this share of a step are not mentioned."""


@dataclass(frozen=True)
class Advice:
    """`part` (a key of step.WORDS) takes most of the step besides compute; `change`: a faster plan, if any."""

    part: str
    milliseconds: float
    share: float
    change: Change | None
    sentence: str


def advise(job: Job, cluster: Cluster, plan: Plan) -> Advice:
    """What costs a plan most time, and what to try."""
    found = step.of(job, cluster, Plans.of([plan]))
    total, parts = float(found.total[0]), found.parts(0)
    lost = {name: seconds for name, seconds in parts.items() if name != "compute"}
    part = max(lost, key=lambda name: lost[name])
    if lost[part] < WORTH * total:
        part = "compute"
    share = parts[part] / total
    change = better(job, cluster, plan, total)
    head = f"{part_text(parts[part], total)} ({percent_text(share)})"
    what = WORDS[part]
    return Advice(
        part, parts[part] * 1e3, share, change, f"{head} {_verb(what)}. {_try(job, cluster, plan, total, change)}"
    )


def part_text(part: float, total: float) -> str:
    """`part` of `total` in words, each in its own unit; a common unit is named once."""
    own, whole = seconds_text(part), seconds_text(total)
    number, unit = own.split(" ", 1)
    return f"{number} of {whole}" if total < 60 and whole.endswith(f" {unit}") else f"{own} of {whole}"


def _verb(what: str) -> str:
    return f"are {what}" if what.endswith("s") or " and " in what else f"is {what}"


def _try(job: Job, cluster: Cluster, plan: Plan, total: float, change: Change | None) -> str:
    if change and change.seconds < (1 - WORTH) * total:
        return (
            f"First try {change.text}: {percent_text(1 - change.seconds / total)} less, {seconds_text(change.seconds)}."
        )
    text, saved = max(_elsewhere(job, cluster, plan, total), key=lambda pair: pair[1])
    on = f" on {plural_text(plan.devices, 'device')}" if plan.devices < cluster.devices else ""
    if saved < WORTH:
        return f"No single change of the plan{on}, the batch or the links makes it faster."
    return f"No single change of the plan{on} is faster; {text} would save {percent_text(saved)}."


def _elsewhere(job: Job, cluster: Cluster, plan: Plan, total: float) -> list[tuple[str, float]]:
    """(change of hardware or batch, share of the time a token takes that it would save)."""
    one = Plans.of([plan])
    links = {
        "twice the link inside hosts": replace(cluster, link=2 * cluster.link),
        "twice the network": replace(cluster, network=2 * cluster.network),
        "twice the memory bandwidth": replace(
            cluster, device=replace(cluster.device, bandwidth=2 * cluster.device.bandwidth)
        ),
    }
    out = [(text, 1 - float(step.of(job, other, one).total[0]) / total) for text, other in links.items()]
    twice = float(step.of(replace(job, batch=2 * job.batch), cluster, one).total[0]) / 2
    return [*out, ("twice the batch", 1 - twice / total)]
