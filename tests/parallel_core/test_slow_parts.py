"""Work that takes minutes with a large model reports progress, so that no watchdog takes the rank for one that
hangs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from parallel_core.checkpoint import folder as folders
from parallel_core.checkpoint import parts
from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.engine import checkpoint, storage
from parallel_core.engine.device import CpuDevice
from parallel_core.engine.distributed import Groups, Rendezvous
from parallel_core.engine.run import run_rank
from parallel_core.engine.shares import Box, Share
from parallel_core.engine.trainer import Trainer
from parallel_core.observe import progress
from parallel_core.observe.progress import Progress
from parallel_core.observe.record_files import FileSink
from parallel_core.spec import RunSpec
from tests.parallel_core import ranks
from tests.spies import noting

SPEC = RunSpec.model_validate(
    {
        "model": {"layers": 2, "hidden": 32, "heads": 4, "seq": 16, "vocab": 64},
        "train": {"steps": 4, "warmup_steps": 1, "checkpoint_every": 2},
    }
)


class Counting(Progress):
    """Keeps every operation it is told."""

    def __init__(self, folder: Path) -> None:
        self.told: list[str] = []
        super().__init__(folder, 0)

    def at(self, step: int, op: str) -> None:
        self.told.append(op)
        super().at(step, op)


def test_every_parameter_that_is_drawn_or_read_is_told(tmp_path: Path) -> None:
    page = Counting(tmp_path)
    trainer = Trainer(SPEC, 0, Groups(), CpuDevice(), page)
    parameters = len(trainer.flat.slots)
    assert page.told.count("building") == parameters
    saver = checkpoint.Saver(trainer, CheckpointConfig(tmp_path / "kept"), FileSink(tmp_path, 0))
    saver.save(2)
    saver.wait()
    checkpoint.load(trainer, folders.path_of(tmp_path / "kept", 2))
    assert page.told.count("loading") >= 3 * parameters  # values and two moments


def test_who_waits_for_a_save_says_so_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = storage.write

    def slow(shares: Mapping[str, Share], file: Path, tell: Any) -> dict[str, Any]:
        tell()
        time.sleep(0.3)
        return write(shares, file, tell)

    monkeypatch.setattr(storage, "write", slow)
    monkeypatch.setattr(checkpoint, "REPORT_INTERVAL_S", 0.02)
    trainer = Trainer(SPEC, 0, Groups(), CpuDevice(), Progress(tmp_path, 0))
    saver = checkpoint.Saver(trainer, CheckpointConfig(tmp_path / "kept"), FileSink(tmp_path, 0))
    saver.save(2)
    saver.wait()
    where = progress.read(tmp_path, 0)
    assert where is not None and (where.step, where.op) == (2, "saving")


def test_who_waits_for_a_save_looks_for_the_other_ranks_every_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part of a rank that has ended on another host never comes, and nobody else tells of its end."""
    joined: list[float] = []
    saver = checkpoint.Saver(
        Trainer(SPEC, 0, Groups(), CpuDevice(), Progress(tmp_path, 0)),
        CheckpointConfig(tmp_path / "kept"),
        FileSink(tmp_path, 0),
    )
    saver.save(2)
    join = noting(threading.Thread.join, joined, lambda _, timeout: timeout)
    monkeypatch.setattr(threading.Thread, "join", join)
    saver.wait()
    assert joined and max(joined) <= 1


def test_a_file_goes_to_disk_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One flush of everything at the end would take minutes with a slow disk."""
    told: list[str] = []
    monkeypatch.setattr(os, "fsync", noting(os.fsync, told, lambda file: "flush"))
    monkeypatch.setattr(storage, "FLUSH_BYTES", 1000)
    sizes = (2500, 100, 100, 400)
    shares = {str(i): Share((n,), [(Box((0,), (n,)), torch.arange(n).double())]) for i, n in enumerate(sizes)}
    part = storage.write(shares, tmp_path / "rank-0.bin", lambda: told.append("moved"))
    assert part["bytes"] == (tmp_path / "rank-0.bin").stat().st_size == 8 * sum(sizes)
    assert told.count("flush") == 8 * sum(sizes) // 1000 + 1  # and the last bytes
    assert told.count("moved") == 8 * sum(sizes) // 1000 + len(sizes)
    parts.write_part(tmp_path, 0, part)
    about = {"step": 1, "run": 0, "attempt": 0, "spec": {}, "scalars": {}}
    manifest = parts.merge(parts.gather_parts(tmp_path, 1, 1.0), **about)
    read = {
        name: Share(share.size(), [(Box((0,), tuple(share.size())), torch.zeros(share.size()).double())])
        for name, share in shares.items()
    }
    storage.load(read, tmp_path, manifest)
    begin = torch.Size((0,))
    assert all(torch.equal(read[name].at(begin), shares[name].at(begin)) for name in shares)


def _saves_slowly(spec: RunSpec, rank: int, meeting: Rendezvous, folder: Path) -> None:
    """Rank 0 has saved only once rank 1, which has nothing to save, is seen to wait."""
    write = storage.write

    def slow(shares: Mapping[str, Share], file: Path, tell: Any) -> dict[str, Any]:
        until = time.monotonic() + 60
        while (where := progress.read(folder, 1)) is None or where.op != "saving":
            assert time.monotonic() < until, f"rank 1 is at {where}"
            tell()
            time.sleep(0.01)
        return write(shares, file, tell)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "REPORT_INTERVAL_S", 0.02)
        if rank == 0:
            patch.setattr(storage, "write", slow)
        order = CheckpointConfig(folder / "kept")
        run_rank(spec, rank, FileSink(folder, rank), meeting, Progress(folder, rank), saves=order)


def test_a_rank_that_has_nothing_to_save_says_that_it_waits(tmp_path: Path) -> None:
    spec = SPEC.model_dump() | {"parallel": {"dp": 2}}
    spec["train"] |= {"global_batch": 2}
    ranks.run(RunSpec.model_validate(spec), _saves_slowly, tmp_path)
    assert folders.steps(tmp_path / "kept") == [2, 4]
