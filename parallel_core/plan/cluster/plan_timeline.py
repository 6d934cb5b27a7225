"""A plan's step as spans: its schedule simulated with predicted costs, for a Gantt chart before any measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parallel_core.analysis.quantities import ns_text
from parallel_core.analysis.rows import last_end
from parallel_core.plan.cluster import memory, work
from parallel_core.plan.cluster.efficiency import Machine, fitted
from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import Plan, Plans
from parallel_core.schedule import compute_only
from parallel_core.schedule.ir import COMPUTE, Kind, Op, Schedule
from parallel_core.schedule.traits import TRAITS
from parallel_core.simulate import Costs, Spans, simulate
from parallel_core.simulate.idle import idle_times

MOST_RANKS = 64
"""Most stages whose step is simulated."""
SHOWN = 1_800
"""Most operations in a chart."""
MOST_NS = 1 << 62
"""Longest step in ns: spans count nanoseconds in 64 bits."""
MOST_ROWS = 8
"""Most ranks drawn, evenly spaced from the first to the last."""


class Drawn(NamedTuple):
    """`spans`: compute of some of the `ranks` stages, for `micro_batches` of the `of` micro-batches of a step. `idle`:
    ns of the drawn step (from the first operation of any stage to the last) in which the busiest stage computes
    nothing."""

    spans: dict[int, Spans]
    ranks: int
    idle: int
    micro_batches: int
    of: int


@dataclass(frozen=True, slots=True)
class _HostCosts(Costs):
    """Messages within a host take `message` ns, those from a stage of `far` to the next one and back `between` ns."""

    between: int = 0
    far: frozenset[int] = frozenset()

    @property
    def longest(self) -> int:
        return max(self.message, self.between)

    def latency(self, op: Op) -> int:
        return self.between if op.stage - (op.kind is Kind.SEND_GRAD) in self.far else self.message


def drawn(job: Job, cluster: Cluster, plan: Plan) -> Drawn:
    """One step of one replica. Raises ValueError for more than MOST_RANKS stages or a step longer than MOST_NS."""
    if plan.pp > MOST_RANKS:
        raise ValueError(f"{plan.pp} stages are too many to draw; at most {MOST_RANKS}.")
    m = max(1, job.batch // (plan.dp * plan.micro_batch))
    chunks = plan.chunks if plan.pp > 1 else 1
    each = chunks * (3 if TRAITS[plan.schedule].split else 2)
    least = 2 * plan.pp - 1 if TRAITS[plan.schedule].split else plan.pp  # with fewer they idle longer
    shown = min(m, max(least, SHOWN // (MOST_ROWS * each)))
    if plan.schedule == "interleaved":  # a round has one micro-batch for each stage
        shown = min(m, -(-shown // plan.pp) * plan.pp)
    schedule = compute_only(plan.schedule, plan.pp, shown, chunks=chunks)
    costs = _costs(job, cluster, plan, schedule)
    if (most := shown * (sum(costs.compute.values()) + 2 * schedule.stages * costs.longest)) > MOST_NS:
        raise ValueError(f"A step of about {ns_text(most)} is too long to draw.")
    spans = simulate(schedule, costs)
    lines = max(2, min(MOST_ROWS, SHOWN // (shown * each)))
    ranks = np.unique(np.linspace(0, plan.pp - 1, lines).astype(int)).tolist()
    end = last_end(spans)
    idle = end - max(times.busy for times in idle_times(spans).values())
    return Drawn({rank: _picture(spans[rank], end) for rank in ranks}, plan.pp, idle, shown, m)


def _picture(rows: Spans, end: int) -> Spans:
    """A rank's compute spans over one STEP span of `end` ns; the part of the STEP that stays visible is idle time."""
    whole = np.zeros(1, rows.dtype)
    whole["kind"], whole["micro_batch"], whole["end"] = Kind.STEP, -1, end
    return np.concatenate([whole, rows[np.isin(rows["kind"], [int(kind) for kind in COMPUTE])]])


def _costs(job: Job, cluster: Cluster, plan: Plan, schedule: Schedule) -> _HostCosts:
    """Nanoseconds of each chunk with its collectives and recomputation; the last chunk includes the output layer."""
    plans, stages = Plans.of([plan]), schedule.stages
    machine = Machine(cluster, fitted(), plans)
    layer, head = work.layer(job, plans, machine), work.head(job, plans, machine)
    layers = float(memory.layers_per_chunk(job, plans)[0]) if plan.pp > 1 else job.model.layers
    short = 1 if job.model.layers % stages else 0
    compute: dict[tuple[int, Kind], int] = {}
    for stage in range(stages):
        count, ends = layers - short * (stage in (0, stages - 1)), float(stage == stages - 1)
        forward = count * (layer.forward + layer.collective_forward) + ends * (head.forward + head.collective_forward)
        again = count * (layer.recompute + layer.collective_recompute)
        inputs = count * (layer.inputs + layer.collective_backward) + ends * head.inputs + again
        weights = count * layer.weights + ends * head.weights
        for kind, seconds in ((Kind.F, forward), (Kind.B, inputs), (Kind.W, weights)):
            compute[stage, kind] = int(1e9 * float(np.asarray(seconds).reshape(-1)[0]))
    boundary = job.model.seq * plans.micro_batch * job.model.hidden * plans.element
    inside, between = (int(1e9 * float(machine.message(boundary / plans.tp, local)[0])) for local in (True, False))
    return _HostCosts(compute, inside, int(boundary[0]), between=between, far=_far(cluster, plan, schedule))


def _far(cluster: Cluster, plan: Plan, schedule: Schedule) -> frozenset[int]:
    """Stages with a rank whose peer in the next stage is on another host."""
    places = np.array([place for (place,) in schedule.placement], np.float64)
    far = cluster.between_hosts(places[:-1], places[1:], np.array(float(plan.tp * plan.dp)))
    return frozenset(np.flatnonzero(far).tolist())
