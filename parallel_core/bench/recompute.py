"""Benchmark of full recomputation: remaining activations and cost, in this engine and with torch.utils.checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_core.bench import duel, turns
from parallel_core.bench.turns import Contestant
from parallel_core.engine.distributed import Groups
from parallel_core.launch_rank import RankArgs
from parallel_core.observe.progress import Progress
from parallel_core.spec import RunSpec

DEPTHS = (4, 16)
"""Numbers of layers: in a deeper model, one block, embedding and head are a smaller part of the activations."""


def spec_of(layers: int, recompute: str) -> RunSpec:
    """Returns the run of the duels on one device, with `layers` layers."""
    run = duel.spec_of("single").model_dump()
    run["model"]["layers"], run["parallel"]["recompute"] = layers, recompute
    run["train"]["global_batch"] = 4
    return RunSpec.model_validate(run)


def contestants(name: str, seat: RankArgs, groups: Groups, page: Progress) -> Mapping[str, Contestant]:
    """Returns `kept` (without recomputation), `ours` and `theirs`; `name` is the number of layers."""
    from parallel_core.bench import ours
    from parallel_core.bench.peers import checkpointed

    specs = {side: spec_of(int(name), how) for side, how in (("kept", "none"), ("ours", "full"))}
    made = {side: ours.build(spec, seat.rank, groups, page, seat.folder) for side, spec in specs.items()}
    return {**made, "theirs": checkpointed.build(specs["ours"], seat.rank, seat.folder)}


def run(rounds: int) -> dict[str, Any]:
    """Returns for each depth: `share` of the activations that is left, `cpu` (processor time relative to no
    recomputation), both also for theirs, and `ratio` (theirs / ours in seconds)."""
    found = {str(depth): _one(depth, rounds) for depth in DEPTHS}
    lines = [
        f"{depth} layers: {row['share']:.2f} of the activations left (theirs {row['their_share']:.2f}) for "
        f"{row['cpu']:.2f}x the CPU time (theirs {row['their_cpu']:.2f}x); {row['ratio']:.2f}x "
        f"torch.utils.checkpoint ({row['range'][0]:.2f}-{row['range'][1]:.2f})"
        for depth, row in found.items()
    ]
    return {**found, "text": "\n            ".join(lines)}


def _one(depth: int, rounds: int) -> dict[str, Any]:
    ranks = turns.hold("recompute", str(depth), spec_of(depth, "full"), rounds)
    live, work = ranks[0]["live"], {name: turns.worked(ranks, name) for name in ("kept", "ours", "theirs")}
    low, ratio, high = turns.quotient(turns.slowest(ranks, "theirs"), turns.slowest(ranks, "ours"))
    return {
        "share": live["ours"] / live["kept"],
        "their_share": live["theirs"] / live["kept"],
        "cpu": work["ours"] / work["kept"],
        "their_cpu": work["theirs"] / work["kept"],
        "ratio": ratio,
        "range": [low, high],
        "loss_difference": float(np.ptp(list(ranks[0]["losses"].values()))),
    }
