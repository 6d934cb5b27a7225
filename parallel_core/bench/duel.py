"""A duel: this engine and one of PyTorch's own, in the same ranks, step by step in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from parallel_core.bench import turns
from parallel_core.bench.turns import Contestant
from parallel_core.engine.distributed import Groups
from parallel_core.launch_rank import Seat
from parallel_core.observe.progress import Progress
from parallel_core.spec import RunSpec

WIDE: dict[str, Any] = {"layers": 8, "hidden": 256}
"""Of `tensor-wide`."""

SPLITS: dict[str, dict[str, Any]] = {
    "single": {},
    "ddp": {"dp": 2},
    "fully_shard": {"dp": 2, "zero": 3},
    "tensor": {"tp": 2},
    "tensor-wide": {"tp": 2},
    "gpipe": {"pp": 2, "schedule": "gpipe", "micro_batches": 4},
    "1f1b": {"pp": 2, "schedule": "1f1b", "micro_batches": 4},
    "interleaved": {"pp": 2, "schedule": "interleaved", "micro_batches": 4},
    "looped-bfs": {"pp": 2, "schedule": "looped-bfs", "micro_batches": 4},
    "zb-h1": {"pp": 2, "schedule": "zb-h1", "micro_batches": 4},
    "zb-v": {"pp": 2, "schedule": "zb-v", "micro_batches": 4},
    "dualpipe-v": {"pp": 2, "schedule": "dualpipe-v", "micro_batches": 4},
}
PIPELINES = tuple(name for name, split in SPLITS.items() if "pp" in split)


def spec_of(name: str) -> RunSpec:
    """The run both contestants train: no clipping, which PyTorch's own leave to the user."""
    model = {"layers": 4, "hidden": 128, "heads": 4, "seq": 128, "vocab": 1024} | (WIDE if "wide" in name else {})
    train = {"global_batch": 16, "clip_norm": None, "weight_decay": 0.1, "steps": 1_000}
    return RunSpec.model_validate({"model": model, "parallel": SPLITS[name], "train": train})


def benches() -> dict[str, Callable[[int], dict[str, Any]]]:
    return {**{name: partial(run, name) for name in SPLITS}, "activations": activations}


def contestants(name: str, seat: Seat, groups: Groups, page: Progress) -> Mapping[str, Contestant]:
    """`ours` and `theirs`."""
    from parallel_core.bench import ours, peers

    return {
        "ours": ours.build(seat.spec, seat.rank, groups, page, seat.folder),
        "theirs": peers.build(name, seat.spec, seat.rank, seat.folder),
    }


def run(name: str, rounds: int) -> dict[str, Any]:
    """Results: ours, theirs (median seconds a step), ratio theirs/ours with its range over rounds, cpu (theirs/ours in
    processor seconds), loss_difference."""
    ranks = turns.hold("duel", name, spec_of(name), rounds)
    ours, theirs = (turns.slowest(ranks, side) for side in ("ours", "theirs"))
    low, ratio, high = turns.quotient(theirs, ours)
    cpu = turns.worked(ranks, "theirs") / turns.worked(ranks, "ours")
    losses = next(rank["losses"] for rank in ranks if None not in rank["losses"].values())
    difference = abs(losses["ours"] - losses["theirs"]) / abs(losses["theirs"])
    text = (
        f"{ratio:.2f}x PyTorch's own ({low:.2f}-{high:.2f}; {cpu:.2f}x in CPU time): {np.median(ours) * 1e3:.1f} ms "
        f"against {np.median(theirs) * 1e3:.1f} ms a step; losses differ by {difference:.0e}"
    )
    return {
        "ours": float(np.median(ours)),
        "theirs": float(np.median(theirs)),
        "ratio": ratio,
        "range": [low, high],
        "cpu": cpu,
        "loss_difference": difference,
        "text": text,
    }


def activations(rounds: int) -> dict[str, Any]:
    """Results: `live` bytes of activations and buffers at the peak of a 1F1B step, ours and theirs, by rank."""
    del rounds  # the same in every step
    ranks = turns.hold("activations", "1f1b", spec_of("1f1b"), 1)
    live = [rank["live"] for rank in ranks]
    parts = [f"rank {i} {of['ours'] / 2**20:.1f} against {of['theirs'] / 2**20:.1f} MiB" for i, of in enumerate(live)]
    return {"live": live, "text": f"1F1B keeps {', '.join(parts)} of PyTorch's own live at the peak"}


def best(results: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Our fastest pipeline against their fastest, of the duels in `results`; None of fewer than two."""
    found = [name for name in PIPELINES if name in results]
    if len(found) < 2:
        return None
    ours, theirs = (min(found, key=lambda name: results[name][side]) for side in ("ours", "theirs"))
    ratio = results[theirs]["theirs"] / results[ours]["ours"]
    return f"{ratio:.2f}x: our best pipeline ({ours}) against their best ({theirs}), of duels one after the other"
