"""Work that takes minutes with a large model reports progress, so that no watchdog takes the rank for one that
hangs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from parallel_core.checkpoint.config import CheckpointConfig
from parallel_core.checkpoint.folder import path_of
from parallel_core.engine import checkpoint, storage
from parallel_core.engine.device import CpuDevice
from parallel_core.engine.distributed import Groups
from parallel_core.engine.shares import Share
from parallel_core.engine.trainer import Trainer
from parallel_core.observe import progress
from parallel_core.observe.progress import Progress
from parallel_core.observe.records import FileSink
from parallel_core.spec import RunSpec

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
    checkpoint.load(trainer, path_of(tmp_path / "kept", 2))
    assert page.told.count("loading") >= 3 * parameters  # values and two moments


def test_who_waits_for_a_save_says_so_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = storage.write

    def slow(shares: Mapping[str, Share], file: Path, tell: Any) -> dict[str, Any]:
        tell()
        time.sleep(0.3)
        return write(shares, file, tell)

    monkeypatch.setattr(storage, "write", slow)
    monkeypatch.setattr(checkpoint, "TOLD_S", 0.02)
    trainer = Trainer(SPEC, 0, Groups(), CpuDevice(), Progress(tmp_path, 0))
    saver = checkpoint.Saver(trainer, CheckpointConfig(tmp_path / "kept"), FileSink(tmp_path, 0))
    saver.save(2)
    saver.wait()
    where = progress.read(tmp_path, 0)
    assert where is not None and (where.step, where.op) == (2, "saving")
