"""Where every rank of a run that stands still was last seen: in words, and marked in the grid of its schedule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parallel_core.layout import Layout
from parallel_core.observe import progress
from parallel_core.schedule import build
from parallel_core.schedule.text import grid
from parallel_core.spec import RunSpec
from workers.ending import Ending, place

MAX_GRID = 16_000
"""Characters of the grid that travel with the event."""


def report(folder: Path, ranks: Sequence[int], limit_s: float, spec: RunSpec) -> Ending:
    """The end for want of progress; written while the ranks still stand there."""
    places = "; ".join(f"rank {rank}{place(folder, rank) or ' before its first step'}" for rank in ranks)
    detail = f"No rank moved for {limit_s:g} s: {places}."
    return Ending("failed", "no_progress", detail, traceback=_marked(folder, ranks, spec)[:MAX_GRID])


def _marked(folder: Path, ranks: Sequence[int], spec: RunSpec) -> str:
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
