"""Duels: this engine against one of PyTorch's own ways to train, in the same ranks, taking turns step by step.

A pipeline is cut by a profile of the same model taken just before, within blocks where that is better. PyTorch's
pipeline takes part twice: with the same cuts, which compares the schedules, and cut between whole blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np

from parallel_core.bench import turns
from parallel_core.bench.turns import Contestant
from parallel_core.engine.distributed import Groups
from parallel_core.launch_rank import RankArgs
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


def spec_of(name: str) -> RunSpec:
    """Returns the run that both contestants train: without clipping, which PyTorch leaves to the user."""
    model = {"layers": 4, "hidden": 128, "heads": 4, "seq": 128, "vocab": 1024} | (WIDE if "wide" in name else {})
    train = {"global_batch": 16, "clip_norm": None, "weight_decay": 0.1, "steps": 1_000}
    return RunSpec.model_validate({"model": model, "parallel": SPLITS[name], "train": train})


def benches() -> dict[str, Callable[[int], dict[str, Any]]]:
    """Returns the duels by name, and `activations`."""
    return {**{name: partial(run, name) for name in SPLITS}, "activations": activations}


def contestants(name: str, seat: RankArgs, groups: Groups, page: Progress) -> Mapping[str, Contestant]:
    """Returns the contestants `ours` and `theirs`; for a pipeline also `blocks`: theirs cut between whole blocks."""
    from parallel_core.bench import ours, peers
    from parallel_core.bench.peers import pipeline

    made = {
        "ours": ours.build(seat.spec, seat.rank, groups, page, seat.folder),
        "theirs": peers.build(name, seat.spec, seat.rank, seat.folder),
    }
    if name in PIPELINES:
        made["blocks"] = pipeline.build(pipeline.in_whole_blocks(seat.spec), seat.rank, seat.folder)
    return made


@lru_cache
def _table() -> CostTable:
    """Profiles the model of the pipelines on two devices of this host."""
    return measure_for(spec_of(PIPELINES[0]), ranks=2, quick=True, seconds=PROFILED_S)


def run(name: str, rounds: int) -> dict[str, Any]:
    """Returns ours (median seconds per step) and `_against`'s results for theirs; of a pipeline also in `blocks`."""
    if name not in PIPELINES:
        return _held(name, spec_of(name), rounds)
    cut = best_cuts(spec_of(name), _table()).spec
    found = _held(name, cut, rounds)
    blocks = found["blocks"]
    cuts = ", ".join(map(str, cut.parallel.cuts or ()))
    text = f"{found['text']}; {_times(blocks)} in whole blocks ({blocks['theirs'] * 1e3:.1f} ms); cuts at {cuts}"
    return {**found, "cuts": cut.parallel.cuts, "text": text}


def _held(name: str, spec: RunSpec, rounds: int) -> dict[str, Any]:
    ranks = turns.hold("duel", name, spec, rounds)
    ours, found = turns.slowest(ranks, "ours"), _against(ranks, "theirs")
    text = (
        f"{_times(found)} PyTorch's own: {np.median(ours) * 1e3:.1f} ms against {found['theirs'] * 1e3:.1f} ms a step; "
        f"losses differ by {found['loss_difference']:.0e}"
    )
    others = {side: _against(ranks, side) for side in ranks[0]["seconds"] if side not in ("ours", "theirs")}
    return {"ours": float(np.median(ours)), **found, **others, "text": text}


def _against(ranks: list[dict[str, Any]], side: str) -> dict[str, Any]:
    """Returns the results against contestant `side`: theirs (its median seconds per step), ratio theirs/ours with its
    range over rounds, cpu (theirs/ours in processor seconds), loss_difference (relative)."""
    low, ratio, high = turns.quotient(turns.slowest(ranks, side), turns.slowest(ranks, "ours"))
    losses = next(rank["losses"] for rank in ranks if None not in rank["losses"].values())
    return {
        "theirs": float(np.median(turns.slowest(ranks, side))),
        "ratio": ratio,
        "range": [low, high],
        "cpu": turns.worked(ranks, side) / turns.worked(ranks, "ours"),
        "loss_difference": abs(losses["ours"] - losses[side]) / abs(losses[side]),
    }


def _times(found: Mapping[str, Any]) -> str:
    low, high = found["range"]
    return f"{found['ratio']:.2f}x ({low:.2f}-{high:.2f}; {found['cpu']:.2f}x in CPU time)"


def activations(rounds: int) -> dict[str, Any]:
    """Returns `live`: bytes of activations and buffers at the peak of a 1F1B step, ours and theirs, by rank."""
    del rounds  # the same in every step
    ranks = turns.hold("activations", "1f1b", spec_of("1f1b"), 1)
    live = [rank["live"] for rank in ranks]
    parts = [f"rank {i} {of['ours'] / 2**20:.1f} against {of['theirs'] / 2**20:.1f} MiB" for i, of in enumerate(live)]
    return {"live": live, "text": f"1F1B keeps {', '.join(parts)} of PyTorch's own live at the peak"}


def best(results: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Compares our fastest pipeline with theirs over the duels in `results`; None with fewer than two pipelines."""
    found = [name for name in PIPELINES if name in results]
    if len(found) < 2:
        return None
    ours = min(found, key=lambda name: results[name]["ours"])
    parts = []
    for how, at in (("our cuts", lambda row: row), ("whole blocks", lambda row: row.get("blocks", row))):
        theirs = min(found, key=lambda name: at(results[name])["theirs"])
        parts.append(f"{at(results[theirs])['theirs'] / results[ours]['ours']:.2f}x theirs ({theirs}) with {how}")
    return f"our best pipeline ({ours}) is {' and '.join(parts)}, of duels one after the other"
