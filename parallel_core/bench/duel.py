"""A duel: this engine and one of PyTorch's own, in the same ranks, step by step in turns."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.launch_rank import Seat
from parallel_core.local import LocalYard
from parallel_core.observe.progress import Progress
from parallel_core.observe.records import FileSink
from parallel_core.spec import RunSpec

Step = Callable[[int], float | None]
"""Trains one step; returns the loss on ranks that know it."""

TURN = 4
"""Steps in a row before the other one's turn."""

SPLITS: dict[str, dict[str, Any]] = {
    "single": {},
    "ddp": {"dp": 2},
    "fully_shard": {"dp": 2, "zero": 3},
    "tensor": {"tp": 2},
    "gpipe": {"pp": 2, "schedule": "gpipe", "micro_batches": 4},
    "1f1b": {"pp": 2, "schedule": "1f1b", "micro_batches": 4},
    "interleaved": {"pp": 2, "schedule": "interleaved", "micro_batches": 4},
    "looped-bfs": {"pp": 2, "schedule": "looped-bfs", "micro_batches": 4},
    "zb-h1": {"pp": 2, "schedule": "zb-h1", "micro_batches": 4},
    "zb-v": {"pp": 2, "schedule": "zb-v", "micro_batches": 4},
    "dualpipe-v": {"pp": 2, "schedule": "dualpipe-v", "micro_batches": 4},
}


def spec_of(name: str) -> RunSpec:
    """The run both contestants train: no clipping, which PyTorch's own leave to the user."""
    model = {"layers": 4, "hidden": 128, "heads": 4, "seq": 128, "vocab": 1024}
    train = {"global_batch": 16, "clip_norm": None, "weight_decay": 0.1, "steps": 1_000}
    return RunSpec.model_validate({"model": model, "parallel": SPLITS[name], "train": train})


def benches() -> dict[str, Callable[[int], dict[str, Any]]]:
    return {name: partial(run, name) for name in SPLITS}


def run(name: str, rounds: int) -> dict[str, Any]:
    """Results: ours, theirs (median seconds a step), ratio theirs/ours with its range over rounds, loss_difference."""
    spec = spec_of(name)
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        (Path(folder) / "duel.json").write_text(json.dumps({"name": name, "rounds": rounds}))
        with LocalYard([sys.executable, "-m", "parallel_core.bench.duel_server"]) as yard:
            outcome = yard.run(spec, Path(folder))
        if not outcome.ok:
            raise RuntimeError(outcome.failure())
        done = [outcome.last(rank, "duel") for rank in range(spec.parallel.world)]
    return _result([d for d in done if d is not None])


def _result(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    ours, theirs = (np.max([rank[side] for rank in ranks], axis=0) for side in ("ours", "theirs"))
    ratios = theirs / ours
    low, ratio, high = (float(v) for v in np.percentile(ratios, (10, 50, 90)))
    losses = next(rank["losses"] for rank in ranks if None not in rank["losses"])
    difference = abs(losses[0] - losses[1]) / abs(losses[1])
    text = (
        f"{ratio:.2f}x PyTorch's own ({low:.2f}-{high:.2f}): {np.median(ours) * 1e3:.1f} ms against "
        f"{np.median(theirs) * 1e3:.1f} ms a step; losses differ by {difference:.0e}"
    )
    return {
        "ours": float(np.median(ours)),
        "theirs": float(np.median(theirs)),
        "ratio": ratio,
        "range": [low, high],
        "loss_difference": difference,
        "text": text,
    }


def be_rank(seat: Seat, sink: FileSink, page: Progress) -> None:
    """In the rank: set both up in one process group, then take turns."""
    from parallel_core.bench import ours, peers
    from parallel_core.engine.distributed import Rendezvous, connect, disconnect
    from parallel_core.layout import Layout

    asked = json.loads((seat.folder / "duel.json").read_text())
    store = seat.store
    at = Rendezvous(store["host"], store["port"], seat.spec.parallel.world, seat.listen_fd is not None, seat.listen_fd)
    groups = connect(at, seat.rank, Layout.of(seat.spec), "gloo")
    try:
        mine = ours.build(seat.spec, seat.rank, groups, page, seat.folder)
        other = peers.build(asked["name"], seat.spec, seat.rank, seat.folder)
        sink.emit("duel", **_take_turns(mine, other, asked["rounds"]))
    finally:
        disconnect()


def _take_turns(mine: Step, other: Step, rounds: int) -> dict[str, Any]:
    """Median seconds a step of each turn; `losses` after the same number of steps."""
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    losses: list[float | None] = [None, None]
    for turn in range(rounds + 1):  # the first turn warms up
        for i, (side, step) in enumerate((("ours", mine), ("theirs", other))):
            took = []
            for n in range(turn * TURN, (turn + 1) * TURN):
                start = time.perf_counter()
                losses[i] = step(n)
                took.append(time.perf_counter() - start)
            if turn:
                times[side].append(float(np.median(took)))
    return {**times, "losses": losses}
