"""Ranks that stand still: for how long none moved, and where each was last seen, in words and in the schedule's
grid."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from parallel_core.layout import Layout
from parallel_core.observe import progress
from parallel_core.observe.wakeful import Wakeful
from parallel_core.schedule import build
from parallel_core.schedule.text import grid, spoken
from parallel_core.spec import RunSpec

NO_PROGRESS_S = 60.0
"""Without a move of any rank a run counts as standing still, unless one says otherwise."""


class Watch:
    """To be asked at every look. Time counts from the first look at which a rank had begun."""

    def __init__(self, folder: Path, ranks: Sequence[int], limit_s: float) -> None:
        self._folder, self._ranks, self._limit_s = folder, ranks, limit_s
        self._wakeful: Wakeful | None = None
        self._launched = 0.0

    def due(self) -> bool:
        """Whether no rank has moved for longer than the limit."""
        if self._wakeful is None:
            if any(progress.path(self._folder, rank).exists() for rank in self._ranks):
                self._wakeful, self._launched = Wakeful(), time.monotonic()
            return False
        watched = self._wakeful.watched()
        return min(watched, still_for(self._folder, self._ranks, self._launched)) > self._limit_s


def still_for(folder: Path, ranks: Sequence[int], launched: float) -> float:
    """Seconds since any rank last moved, or since the launch (CLOCK_MONOTONIC)."""
    ages = [where.age for rank in ranks if (where := progress.read(folder, rank))]
    return min([time.monotonic() - launched, *ages])


def place(folder: Path, rank: int) -> str:
    """' at step 12 in forward 3 of stage 1', '' where the rank never said."""
    where = progress.read(folder, rank)
    if where is None:
        return ""
    op = f" in {spoken(where.op)}" if where.op else ""
    return f" at step {where.step}{op}" if where.step >= 0 else f" before its first step{op}"


def sentence(folder: Path, ranks: Sequence[int], limit_s: float) -> str:
    """Where every rank stands; to be asked while the ranks are still there."""
    places = "; ".join(f"rank {rank}{place(folder, rank) or ' before its first step'}" for rank in ranks)
    return f"No rank moved for {limit_s:g} s: {places}."


def marked(folder: Path, ranks: Sequence[int], spec: RunSpec) -> str:
    """The schedule with `>...<` around the operation of each rank that is inside a step.

    A tensor-parallel group walks one program: its ranks may stand in several cells of one line.
    """
    steps = 1 if spec.parallel.flushes else 2  # of a full pipeline: a step has forwards of the next one
    schedule, layout = build(spec, steps), Layout.of(spec)
    marks = set()
    for rank in ranks:
        where, line = progress.read(folder, rank), layout.pipeline_rank(rank)
        if where is not None and where.step >= 0:
            marks |= {(line, i) for i, op in enumerate(schedule.programs[line]) if str(op) == where.op}
    return f"{grid(schedule, *sorted(marks))}\nStacks of all ranks are at the end of their logs."
