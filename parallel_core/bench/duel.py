"""Duels: this engine against one of PyTorch's own ways to train, in the same ranks, taking turns step by step.

A pipeline is cut by a profile of the same model taken just before, within blocks where that is better. PyTorch's
pipeline takes part twice: with the same cuts, which compares the schedules, and cut between whole blocks. The limits of
the machine (`limits`) take their turns, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np

from parallel_core.bench import goals, limits, turns
from parallel_core.bench.goals import Judged
from parallel_core.bench.turns import Contestant
from parallel_core.engine.distributed import Groups
from parallel_core.launch.rank import RankArgs
from parallel_core.observe.progress import Progress
from parallel_core.profile.measure import measure_for
from parallel_core.profile.table import CostTable
from parallel_core.simulate.cuts import best_cuts
from parallel_core.spec import RunSpec

PROFILED_S = 2.0
"""Seconds for which the layers of the pipelines are profiled."""

WIDE: dict[str, Any] = {"layers": 8, "hidden": 256}
"""Model sizes of `tensor-wide`."""

SPLITS: dict[str, dict[str, Any]] = {
    "single": {},
    "ddp": {"dp": 2},
    "fully_shard": {"dp": 2, "zero": 3},
    "tensor": {"tp": 2},
    "tensor-wide": {"tp": 2},
    "gpipe": {"pp": 2, "schedule": "gpipe", "micro_batches": 4},
    "1f1b": {"pp": 2, "schedule": "1f1b", "micro_batches": 4},
    "gpipe-early": {"pp": 2, "schedule": "gpipe", "micro_batches": 4, "early_gradients": True},
    "1f1b-early": {"pp": 2, "schedule": "1f1b", "micro_batches": 4, "early_gradients": True},
    "interleaved": {"pp": 2, "schedule": "interleaved", "micro_batches": 4},
    "looped-bfs": {"pp": 2, "schedule": "looped-bfs", "micro_batches": 4},
    "zb-h1": {"pp": 2, "schedule": "zb-h1", "micro_batches": 4},
    "zb-v": {"pp": 2, "schedule": "zb-v", "micro_batches": 4},
    "dualpipe-v": {"pp": 2, "schedule": "dualpipe-v", "micro_batches": 4},
}
PIPELINES = tuple(name for name, split in SPLITS.items() if "pp" in split)

FASTER: dict[str, float] = {"ddp": 1.0, "tensor": 1.4, "tensor-wide": 1.2, **dict.fromkeys(PIPELINES, 1.05)}
"""Goals: least speed relative to PyTorch's own."""
BEST, SHARE, WORK, LOSS = 1.05, 0.95, 1.4, 1e-6
"""Goals: least speed of our best pipeline relative to their best; least share of two processes alone on half batches;
most processor time of tensor ranks relative to one device's; largest relative difference of the losses."""


def spec_of(name: str) -> RunSpec:
    """Returns the run that both contestants train: without clipping, which PyTorch leaves to the user."""
    model = {"layers": 4, "hidden": 128, "heads": 4, "seq": 128, "vocab": 1024} | (WIDE if "wide" in name else {})
    train = {"global_batch": 16, "clip_norm": None, "weight_decay": 0.1, "steps": 1_000}
    return RunSpec.model_validate({"model": model, "parallel": SPLITS[name], "train": train})


def benches() -> dict[str, Callable[[int], dict[str, Any]]]:
    """Returns the duels by name, and `activations`."""
    return {**{name: partial(run, name) for name in SPLITS}, "activations": activations}


def pair(name: str, args: RankArgs, groups: Groups, page: Progress) -> dict[str, Contestant]:
    """Returns the contestants `ours` and `theirs`."""
    from parallel_core.bench import own_engine, peers

    return {
        "ours": own_engine.build(args.spec, args.rank, groups, page, args.folder),
        "theirs": peers.build(name, args.spec, args.rank, args.folder),
    }


def contestants(name: str, args: RankArgs, groups: Groups, page: Progress) -> Mapping[str, Contestant]:
    """Returns `pair`, for a pipeline also `blocks`: theirs cut between whole blocks, and those of `limits`."""
    from parallel_core.bench.peers import pipeline

    made = pair(name, args, groups, page)
    if name in PIPELINES:
        made["blocks"] = pipeline.build(pipeline.in_whole_blocks(args.spec), args.rank, args.folder)
    return made | limits.contestants(args.spec, page, args.folder)


@lru_cache
def _table() -> CostTable:
    """Profiles the model of the pipelines on two devices of this host."""
    return measure_for(spec_of(PIPELINES[0]), ranks=2, quick=True, seconds=PROFILED_S)


def run(name: str, rounds: int) -> dict[str, Any]:
    """Returns the results of `held` for a duel of so many rounds; of a pipeline also its `cuts`."""
    if name not in PIPELINES:
        spec = spec_of(name)
        return held(name, spec, turns.hold("duel", name, spec, rounds))
    cut = best_cuts(spec_of(name), _table()).spec
    found = held(name, cut, turns.hold("duel", name, cut, rounds))
    cuts = ", ".join(map(str, cut.parallel.cuts or ()))
    return {**found, "cuts": cut.parallel.cuts, "text": f"{found['text']}; cuts at {cuts}"}


def held(name: str, spec: RunSpec, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the results of a duel; `ranks`: those of `turns.take_turns` on each rank.

    ours: median seconds per step; turns: their number; `_against`'s results for theirs, of a pipeline also in `blocks`;
    the results of `limits.held`; goals.
    """
    others = [side for side in ranks[0]["seconds"] if side not in (*limits.SIDES, "ours")]
    ours, rest = turns.slowest(ranks, "ours"), {side: _against(ranks, side) for side in others}
    against = rest.pop("theirs")
    found = {"turns": len(ours), "ours": float(np.median(ours)), **against, **rest}
    found |= limits.held(ranks, spec, ["ours", *others])
    return {**found, "goals": _goals(name, spec, found), "text": _text(name, found)}


def _against(ranks: list[dict[str, Any]], side: str) -> dict[str, Any]:
    """Returns the results against contestant `side`: theirs (its median seconds per step), ratio theirs/ours with its
    range over turns, cpu (theirs/ours in processor seconds), loss_difference (relative, after turns.WARMUP updates)."""
    low, ratio, high = turns.quotient(turns.slowest(ranks, side), turns.slowest(ranks, "ours"))
    theirs = turns.loss(ranks, side)
    return {
        "theirs": float(np.median(turns.slowest(ranks, side))),
        "ratio": ratio,
        "range": [low, high],
        "cpu": turns.worked(ranks, side) / turns.worked(ranks, "ours"),
        "loss_difference": abs(turns.loss(ranks, "ours") - theirs) / abs(theirs),
    }


def _goals(name: str, spec: RunSpec, found: Mapping[str, Any]) -> list[Judged]:
    judged = []
    if name in FASTER:
        judged.append(goals.at_least("speed over PyTorch's own", found["ratio"], FASTER[name]))
    if name == "ddp":
        judged.append(goals.at_least("share of two processes alone on half batches", found["shares"]["ours"], SHARE))
    if spec.parallel.tp > 1:
        judged.append(goals.at_most("processor time over ranks, of one device's", found["work"]["ours"], WORK))
    what = f"relative difference of the losses after {turns.WARMUP} steps"
    return [*judged, goals.at_most(what, found["loss_difference"], LOSS)]


def _text(name: str, found: Mapping[str, Any]) -> str:
    parts = [
        f"{_times(found)} PyTorch's own in {found['turns']} turns: {found['ours'] * 1e3:.1f} ms against "
        f"{found['theirs'] * 1e3:.1f} ms a step; losses differ by {found['loss_difference']:.0e}"
    ]
    if "blocks" in found:
        parts.append(f"{_times(found['blocks'])} theirs in whole blocks ({found['blocks']['theirs'] * 1e3:.1f} ms)")
    if "shares" in found:
        most = "the ceiling of 1F1B" if name in PIPELINES else "two processes alone on half batches"
        parts.append(f"of {most} ({found['limits']['ceiling'] * 1e3:.1f} ms) {_sides(found['shares'])}")
    if "work" in found:
        parts.append(f"processor time over ranks, of one device's, {_sides(found['work'])}")
    return "; ".join(parts)


def _sides(values: Mapping[str, float]) -> str:
    return ", ".join(f"{side} {value:.2f}" for side, value in values.items())


def _times(found: Mapping[str, Any]) -> str:
    low, high = found["range"]
    return f"{found['ratio']:.2f}x ({low:.2f}-{high:.2f}; {found['cpu']:.2f}x in CPU time)"


def activations(rounds: int) -> dict[str, Any]:
    """Returns `live`: bytes of activations and buffers at the peak of a 1F1B step, ours and theirs, by rank."""
    del rounds  # the same in every step
    ranks = turns.hold("activations", "1f1b", spec_of("1f1b"), 1)
    live = [rank["live"] for rank in ranks]
    parts = [f"rank {i} {of['ours'] / 2**20:.1f} against {of['theirs'] / 2**20:.1f} MiB" for i, of in enumerate(live)]
    judged = [
        goals.at_most(f"live bytes of rank {i}, of theirs", of["ours"] / of["theirs"], 1) for i, of in enumerate(live)
    ]
    text = f"1F1B keeps {', '.join(parts)} of PyTorch's own live at the peak"
    return {"live": live, "goals": judged, "text": text}


def best(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Compares our fastest pipeline with theirs over the duels in `results`; None with fewer than two pipelines.

    Duels follow one another, so that the pace of the host differs; each contestant is therefore taken by its share of
    two processes alone (`of_alone`) in its own turns. `theirs` and `blocks`: the fastest with the same cuts and in
    whole blocks, each with `ratio`, our speed relative to it; the goal is for the lesser ratio.
    """
    shares = {name: results[name]["of_alone"] for name in PIPELINES if name in results}
    if len(shares) < 2:
        return None

    def fastest(side: str) -> str:
        return max(shares, key=lambda name: shares[name][side])

    ours, found, parts = fastest("ours"), {}, []
    for side, how in (("theirs", "our cuts"), ("blocks", "whole blocks")):
        theirs = fastest(side)
        found[side] = {"name": theirs, "ratio": shares[ours]["ours"] / shares[theirs][side]}
        parts.append(f"{found[side]['ratio']:.2f}x theirs ({theirs}) with {how}")
    least = min(row["ratio"] for row in found.values())
    text = f"our best pipeline ({ours}) is {' and '.join(parts)}, each by its share of two processes alone"
    judged = [goals.at_least("speed of our best pipeline over their best", least, BEST)]
    return {"ours": ours, **found, "goals": judged, "text": text}
