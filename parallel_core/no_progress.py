"""Ranks without progress: for how long none has moved, and where each was last seen, in words and in its
program."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parallel_core.layout import Layout
from parallel_core.observe import progress
from parallel_core.observe.suspension import SuspensionDetector
from parallel_core.schedule import build
from parallel_core.schedule.ir import Program
from parallel_core.schedule.stream import Windows, longest_built, stream_end
from parallel_core.schedule.text import around, spoken, under_way
from parallel_core.spec import RunSpec

STACKS = "Stacks of all ranks are at the end of their logs."
MOST_PASSES = 10_000
"""Most pairs of micro-batch and stage for which programs are made, which takes up to two seconds: the worker's
supervisor, which also starts and stops other runs, waits for it."""


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
    """Returns the seconds since any rank last moved, or since the launch (CLOCK_MONOTONIC) if that was later; 0 where a
    page cannot be read, as with no file descriptor left: such a rank may be moving."""
    try:
        ages = [where.age for rank in ranks if (where := progress.read_or_raise(folder, rank))]
    except OSError:
        return 0.0
    return min([time.monotonic() - launched, *ages])


def place(folder: Path, rank: int) -> str:
    """Returns ' at step 12 in forward 3 of stage 1'; ' while it measured links' of a rank without steps; '' where the
    rank has not reported a position."""
    where = progress.read(folder, rank)
    if where is None:
        return ""
    if where.step == progress.NO_STEPS:
        return f" while it measured {where.op}"
    op = f" in {under_way(where.op)}" if where.op else ""
    return f" at step {where.step}{op}" if where.step >= 0 else f" before its first step{op}"


def sentence(folder: Path, ranks: Sequence[int], limit_s: float) -> str:
    """Returns a sentence on where every rank is; call it while the ranks are still there."""
    places = "; ".join(f"rank {rank}{place(folder, rank) or ' before its first step'}" for rank in ranks)
    return f"No rank moved for {limit_s:g} s: {places}."


def marked(folder: Path, ranks: Sequence[int], spec: RunSpec) -> str:
    """Returns where the stacks are, then a line for each rank that is within a step: its program around its operation,
    which is in `>...<`; between operations, what it does. Without these lines where the programs are too long to make
    them at once (MOST_PASSES).

    The ranks of a tensor-parallel group execute one program: those in one step share a line, with the marks of all.
    """
    if _passes(spec) > MOST_PASSES:
        return f"{STACKS}\n{spec.parallel.schedule}: the programs are too long to show the operations around each rank."
    layout, programs = Layout.of(spec), _Programs(spec)
    lines: dict[tuple[int, int, int], _Line] = {}
    between: list[tuple[list[int], str]] = []
    for rank in ranks:
        where, q = progress.read(folder, rank), layout.pipeline_rank(rank)
        if where is None or where.step < 0:
            continue
        for which, made in enumerate(programs.of(where.step)):
            if at := {i for i, op in enumerate(made[q]) if str(op) == where.op}:
                lines.setdefault((q, where.step, which), _Line(made[q], where.step)).add(rank, at)
                break
        else:
            between.append(([rank], f"rank {rank}, step {where.step} | between operations: {spoken(where.op)}"))
    shown = [text for _, text in sorted([*((line.ranks, str(line)) for line in lines.values()), *between])]
    return "\n".join([STACKS, *([programs.title] if shown else []), *shown])


def _passes(spec: RunSpec) -> int:
    """Returns the pairs of micro-batch and stage in the longest schedule that `_Programs` makes."""
    split = spec.parallel
    steps = 1 if split.flushes else longest_built(sum(split.copies), split.per_step)
    return steps * split.per_step * split.stages


@dataclass
class _Line:
    """The ranks that are in one step of one program, and the positions of their operations."""

    program: Program
    step: int
    ranks: list[int] = field(default_factory=list)
    marks: set[int] = field(default_factory=set)

    def add(self, rank: int, marks: set[int]) -> None:
        self.ranks.append(rank)
        self.marks |= marks

    def __str__(self) -> str:
        who = f"rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"
        return f"{who}, step {self.step} | {around(self.program, self.marks)}"


class _Programs:
    """The programs of a run's steps, by pipeline rank."""

    def __init__(self, spec: RunSpec) -> None:
        train, split = spec.train, spec.parallel
        self._windows = None if split.flushes else Windows(spec)
        self._whole = build(spec).programs if split.flushes else ()
        self._train, self._every = train, train.checkpoint_every or train.steps
        since = "" if split.flushes else "; micro-batches count from the first of the rank's step"
        self.title = f"{split.schedule}: operations around that of each rank, after the number of the first{since}"

    def of(self, step: int) -> Iterator[tuple[Program, ...]]:
        """Yields what the ranks may run in a step, the likeliest first.

        Without a flush it depends on the length of the stream and the place of the step in it, which is not known of a
        resumed run: steps of a full pipeline, of one that fills and one that drains follow.
        """
        if self._windows is None:
            yield self._whole
            return
        begin, long = step // self._every * self._every, self._windows.longest
        own = step - begin, stream_end(self._train, step) - begin
        for at, steps in (own, (self._windows.edge, long), (0, long), (long - 1, long)):
            if at < steps:
                yield self._windows.window(at, steps).programs
