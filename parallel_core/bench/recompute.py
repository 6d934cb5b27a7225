"""Benchmark of full recomputation: remaining activations and cost, in this engine and with torch.utils.checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_core.bench import duel, goals, turns
from parallel_core.bench.goals import Judged
from parallel_core.bench.turns import Contestant
from parallel_core.engine.distributed import Groups
from parallel_core.launch.rank import RankArgs
from parallel_core.observe.progress import Progress
from parallel_core.spec import RunSpec

LEFT = {4: 0.35, 16: 0.15}
"""Number of layers -> goal for the share of activations that is left: in a deeper model, one block, embedding and head
are a smaller part of them."""
WORK = 1.33
"""Goal for the processor time relative to no recomputation."""


def spec_of(layers: int, recompute: str) -> RunSpec:
    """Returns the run of the duels on one device, with `layers` layers."""
    run = duel.spec_of("single").model_dump()
    run["model"]["layers"], run["parallel"]["recompute"] = layers, recompute
    run["train"]["global_batch"] = 4
    return RunSpec.model_validate(run)


def contestants(name: str, args: RankArgs, groups: Groups, page: Progress) -> Mapping[str, Contestant]:
    """Returns `kept` (without recomputation), `ours` and `theirs`; `name` is the number of layers."""
    from parallel_core.bench import own_engine
    from parallel_core.bench.peers import checkpointed

    specs = {side: spec_of(int(name), how) for side, how in (("kept", "none"), ("ours", "full"))}
    made = {side: own_engine.build(spec, args.rank, groups, page, args.folder) for side, spec in specs.items()}
    return {**made, "theirs": checkpointed.build(specs["ours"], args.rank, args.folder)}


def run(rounds: int) -> dict[str, Any]:
    """Returns for each depth: `share` of the activations that is left, `cpu` (processor time relative to no
    recomputation), both also for theirs, `ratio` (theirs / ours in seconds), and `loss_difference` (relative, after
    turns.WARMUP updates)."""
    found = {str(depth): _one(depth, rounds) for depth in LEFT}
    lines = [
        f"{depth} layers: {row['share']:.2f} of the activations left (theirs {row['their_share']:.2f}) for "
        f"{row['cpu']:.2f}x the CPU time (theirs {row['their_cpu']:.2f}x); {row['ratio']:.2f}x "
        f"torch.utils.checkpoint ({row['range'][0]:.2f}-{row['range'][1]:.2f})"
        for depth, row in found.items()
    ]
    judged = [one for depth, left in LEFT.items() for one in _goals(depth, left, found[str(depth)])]
    return {**found, "goals": judged, "text": "\n            ".join(lines)}


def _goals(depth: int, left: float, row: Mapping[str, Any]) -> list[Judged]:
    what = f"relative difference of the losses after {turns.WARMUP} steps, {depth} layers"
    return [
        goals.at_most(f"share of the activations left, {depth} layers", row["share"], left),
        goals.at_most(f"processor time relative to no recomputation, {depth} layers", row["cpu"], WORK),
        goals.at_most(what, row["loss_difference"], duel.LOSS),
    ]


def _one(depth: int, rounds: int) -> dict[str, Any]:
    ranks = turns.hold("recompute", str(depth), spec_of(depth, "full"), rounds)
    live, work = ranks[0]["live"], {name: turns.worked(ranks, name) for name in ("kept", "ours", "theirs")}
    losses = [turns.loss(ranks, name) for name in work]
    low, ratio, high = turns.quotient(turns.slowest(ranks, "theirs"), turns.slowest(ranks, "ours"))
    return {
        "share": live["ours"] / live["kept"],
        "their_share": live["theirs"] / live["kept"],
        "cpu": work["ours"] / work["kept"],
        "their_cpu": work["theirs"] / work["kept"],
        "ratio": ratio,
        "range": [low, high],
        "loss_difference": float(np.ptp(losses)) / min(losses),
    }
