"""A plan's step as spans: its schedule simulated with its predicted costs, for the Gantt that was not measured yet."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from parallel_core.analysis.quantities import ns_text
from parallel_core.plan.cluster import memory, work
from parallel_core.plan.cluster.efficiency import Machine, fitted
from parallel_core.plan.cluster.hardware import Cluster
from parallel_core.plan.cluster.job import Job
from parallel_core.plan.cluster.plans import Plan, Plans
from parallel_core.schedule import compute_only
from parallel_core.schedule.ir import COMPUTE, Kind
from parallel_core.schedule.traits import TRAITS
from parallel_core.simulate import Costs, Spans, simulate
from parallel_core.simulate.idle import idle_times

MOST_RANKS = 64
"""Stages of which a Gantt is simulated at most."""
SHOWN = 1_800
"""Operations that a picture can show."""
MOST_NS = 1 << 62
"""Of a step: spans count nanoseconds in 64 bits."""
MOST_ROWS = 8
"""Ranks that are drawn, evenly from the first to the last."""


class Drawn(NamedTuple):
    """`spans` = compute of some of the `ranks` stages, `micro_batches` of the `of` that a step has; `idle` = ns of the
    drawn step, from the first operation of any stage to the last, in which the busiest stage computes nothing."""

    spans: dict[int, Spans]
    ranks: int
    idle: int
    micro_batches: int
    of: int


def drawn(job: Job, cluster: Cluster, plan: Plan) -> Drawn:
    """One step of one replica. Raises ValueError for more than MOST_RANKS stages, or a step of more than MOST_NS."""
    if plan.pp > MOST_RANKS:
        raise ValueError(f"{plan.pp} stages are too many to draw; at most {MOST_RANKS}.")
    m = max(1, job.batch // (plan.dp * plan.micro_batch))
    chunks = plan.chunks if plan.pp > 1 else 1
    each = chunks * (3 if TRAITS[plan.schedule].split else 2)
    shown = min(m, max(plan.pp, SHOWN // (MOST_ROWS * each)))
    if plan.schedule == "interleaved":  # its rounds are of as many micro-batches as stages
        shown = min(m, -(-shown // plan.pp) * plan.pp)
    schedule = compute_only(plan.schedule, plan.pp, shown, chunks=chunks)
    costs = _costs(job, cluster, plan, schedule.stages)
    if (most := shown * (sum(costs.compute.values()) + 2 * schedule.stages * costs.message)) > MOST_NS:
        raise ValueError(f"A step of about {ns_text(most)} is too long to draw.")
    spans = simulate(schedule, costs)
    lines = max(2, min(MOST_ROWS, SHOWN // (shown * each)))
    ranks = np.unique(np.linspace(0, plan.pp - 1, lines).astype(int)).tolist()
    end = max(int(rows["end"].max()) for rows in spans.values())
    idle = end - max(times.busy for times in idle_times(spans).values())
    return Drawn({rank: _picture(spans[rank], end) for rank in ranks}, plan.pp, idle, shown, m)


def _picture(rows: Spans, end: int) -> Spans:
    """The compute of a rank over a STEP as long as the slowest rank's: what stays visible of that is idle."""
    whole = np.zeros(1, rows.dtype)
    whole["kind"], whole["micro_batch"], whole["end"] = Kind.STEP, -1, end
    return np.concatenate([whole, rows[np.isin(rows["kind"], [int(kind) for kind in COMPUTE])]])


def _costs(job: Job, cluster: Cluster, plan: Plan, stages: int) -> Costs:
    """Nanoseconds of a chunk; the last one also has the output layer. Collectives and recomputation are inside."""
    plans = Plans.of([plan])
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
    message = machine.message(boundary / plans.tp, plans.tp * plans.dp)
    return Costs(compute, int(1e9 * float(message[0])), int(boundary[0]))
