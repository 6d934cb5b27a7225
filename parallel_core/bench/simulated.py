"""Benchmark of the simulation of a step of the largest configuration: 10^12 parameters on 3 072 GPUs (PTD-P, Table 1).

Replicas and tensor ranks are symmetric, so one pipeline represents all: 64 stages of 1F1B, 512 micro-batches.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from parallel_core.analysis.rows import last_end
from parallel_core.bench import goals
from parallel_core.schedule import plain
from parallel_core.schedule.ir import Kind
from parallel_core.simulate import Costs, simulate
from parallel_core.spec import ParallelSpec

SPLIT = {"dp": 6, "tp": 8, "pp": 64, "micro_batches": 512, "schedule": "1f1b"}
NS = {Kind.F: 1_000, Kind.BW: 2_000, Kind.ALLREDUCE: 500, Kind.OPT_STEP: 500}

MOST_S = 2.0
"""Goal for building and simulating the schedule."""


def run(rounds: int) -> dict[str, Any]:
    """Seconds to build and simulate the schedule, median of `rounds`; `operations`; `step`: simulated time in ns."""
    split = ParallelSpec.model_validate(SPLIT)
    costs = Costs({(stage, kind): ns for stage in range(split.pp) for kind, ns in NS.items()})
    took = []
    for _ in range(max(1, rounds)):
        start = time.perf_counter()
        made = plain(split)
        spans = simulate(made, costs)
        took.append(time.perf_counter() - start)
    operations, seconds = sum(map(len, spans.values())), float(np.median(took))
    world = split.dp * split.tp * split.pp
    return {
        "seconds": seconds,
        "operations": operations,
        "step": last_end(spans),
        "goals": [goals.below("seconds to build and simulate the schedule", seconds, MOST_S)],
        "text": f"{operations:,} operations of {world:,} ranks, symmetric ones folded: {seconds:.2f} s",
    }
