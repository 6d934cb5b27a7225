"""This engine as a contestant: the same steps as in a run, with spans recorded as always."""

from __future__ import annotations

from pathlib import Path

from parallel_core.bench.turns import Contestant
from parallel_core.engine.device import CpuDevice
from parallel_core.engine.distributed import Groups
from parallel_core.engine.trainer import Trainer
from parallel_core.observe.memory import MemoryMeter
from parallel_core.observe.progress import Progress
from parallel_core.observe.scope import Scope
from parallel_core.spec import RunSpec


def build(
    spec: RunSpec,
    rank: int,
    groups: Groups,
    page: Progress,
    cache: Path,
    *,
    traced: bool = False,
    recorded: bool = True,
) -> Contestant:
    """Returns the contestant on one rank; `traced`: its spans are read after each step; `recorded`: it has spans."""
    trainer = Trainer(spec, rank, groups, CpuDevice(), page, cache)
    if not recorded:
        _unrecord(trainer.scope)

    def step(number: int) -> float:
        return float(trainer.step(number).loss)

    def metered(number: int) -> MemoryMeter:
        return trainer.metered_step(number)[1]

    return Contestant(step, metered, trainer.recorder.end_step if traced else None)


def _unrecord(scope: Scope) -> None:
    """Turns marks and spans of `scope` into calls that do nothing. The engine has no such switch: it always records."""
    vars(scope).update(mark=int, span=_nothing)


def _nothing(kind: int, lane: int, start: int, bytes: int = 0) -> None:
    pass
