"""Ranks without progress: for how long none has moved, and where each was last seen, in words and in the schedule's
grid."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from parallel_core.layout import Layout
from parallel_core.observe import progress
from parallel_core.observe.suspension import SuspensionDetector
from parallel_core.schedule import build
from parallel_core.schedule.text import grid, spoken
from parallel_core.spec import RunSpec


class Watch:
    """Detects a run without progress; `due` must be called regularly. Time counts from the first call at which a rank
    had started."""

    def __init__(self, folder: Path, ranks: Sequence[int], limit_s: float) -> None:
        self._folder, self._ranks, self._limit_s = folder, ranks, limit_s
        self._suspensions: SuspensionDetector | None = None
        self._launched = 0.0

    def due(self) -> bool:
        """Whether no rank has moved for longer than the limit."""
        if self._suspensions is None:
            if any(progress.path(self._folder, rank).exists() for rank in self._ranks):
                self._suspensions, self._launched = SuspensionDetector(), time.monotonic()
            return False
        watched = self._suspensions.watched()
        return min(watched, still_for(self._folder, self._ranks, self._launched)) > self._limit_s


def still_for(folder: Path, ranks: Sequence[int], launched: float) -> float:
    """Returns the seconds since any rank last moved, or since the launch (CLOCK_MONOTONIC) if that was later."""
    ages = [where.age for rank in ranks if (where := progress.read(folder, rank))]
    return min([time.monotonic() - launched, *ages])


def place(folder: Path, rank: int) -> str:
    """Returns ' at step 12 in forward 3 of stage 1'; '' where the rank has not reported a position."""
    where = progress.read(folder, rank)
    if where is None:
        return ""
    op = f" in {spoken(where.op)}" if where.op else ""
    return f" at step {where.step}{op}" if where.step >= 0 else f" before its first step{op}"


def sentence(folder: Path, ranks: Sequence[int], limit_s: float) -> str:
    """Returns a sentence on where every rank is; call it while the ranks are still there."""
    places = "; ".join(f"rank {rank}{place(folder, rank) or ' before its first step'}" for rank in ranks)
    return f"No rank moved for {limit_s:g} s: {places}."


def marked(folder: Path, ranks: Sequence[int], spec: RunSpec) -> str:
    """Returns the schedule with `>...<` around the operation of each rank that is within a step.

    The ranks of a tensor-parallel group execute one program, so several cells of one line may be marked.
    """
    steps = 1 if spec.parallel.flushes else 2  # without a flush, a step contains forwards of the next one
    schedule, layout = build(spec, steps), Layout.of(spec)
    marks = set()
    for rank in ranks:
        where, line = progress.read(folder, rank), layout.pipeline_rank(rank)
        if where is not None and where.step >= 0:
            marks |= {(line, i) for i, op in enumerate(schedule.programs[line]) if str(op) == where.op}
    return f"{grid(schedule, *sorted(marks))}\nStacks of all ranks are at the end of their logs."
