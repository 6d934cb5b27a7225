"""Benchmark of the engine's share of the most that this machine can do; all in the same two processes, taking turns.

    alone     both processes train half of the batch independently: data parallelism with free communication
    whole     both train the whole batch
    cut       the same in as many micro-batches as the pipeline has: the cost of small batches here

The pipeline's ceiling is `alone` x (m + p - 1) / m x cut / whole: only its bubble and its small batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_core.bench import duel, turns
from parallel_core.bench.turns import Contestant
from parallel_core.engine.distributed import Groups, groups_of
from parallel_core.launch_rank import RankArgs
from parallel_core.layout import Layout
from parallel_core.observe.progress import Progress
from parallel_core.spec import RunSpec

SINGLE: dict[str, dict[str, Any]] = {"alone": {}, "whole": {}, "cut": {"micro_batches": 4}}
SPLIT = ("ddp", "tensor", "1f1b", "zb-v")


def _alone(name: str) -> RunSpec:
    run = duel.spec_of("single").model_dump()
    run["parallel"] = SINGLE[name]
    run["train"]["global_batch"] //= 2 if name == "alone" else 1
    return RunSpec.model_validate(run)


def contestants(name: str, seat: RankArgs, groups: Groups, page: Progress) -> Mapping[str, Contestant]:
    """Returns the contestants: the single-process runs, and this engine under each of SPLIT."""
    from parallel_core.bench import ours

    assert groups.store is not None
    made = {side: ours.build(_alone(side), 0, Groups(), page, seat.folder) for side in SINGLE}
    for side in SPLIT:
        spec = duel.spec_of(side)
        made[side] = ours.build(spec, seat.rank, groups_of(seat.rank, Layout.of(spec), groups.store), page, seat.folder)
    return made


def run(rounds: int) -> dict[str, Any]:
    """Returns `shares` of the most that the machine can do (1 = all of it), and `cpu`: processor time of the
    tensor-parallel ranks relative to a single device."""
    spec = duel.spec_of("ddp")
    ranks = turns.hold("limits", "", spec, rounds)
    took = {name: turns.slowest(ranks, name) for name in (*SINGLE, *SPLIT)}
    m, p = duel.spec_of("1f1b").parallel.micro_batches, spec.parallel.world
    ceiling = took["alone"] * (m + p - 1) / m * np.median(took["cut"] / took["whole"])
    most = {"ddp": took["alone"], "1f1b": ceiling, "zb-v": ceiling}
    shares = {name: turns.quotient(limit, took[name])[1] for name, limit in most.items()}
    cpu = turns.worked(ranks, "tensor") / (turns.worked(ranks, "whole") / p)
    text = (
        f"data parallel {shares['ddp']:.2f} of two processes alone on half batches; 1F1B {shares['1f1b']:.2f} and "
        f"ZB-V {shares['zb-v']:.2f} of 1F1B's ceiling; tensor ranks work {cpu:.2f}x one device's CPU time"
    )
    return {"shares": shares, "cpu": cpu, "seconds": {k: float(np.median(v)) for k, v in took.items()}, "text": text}
