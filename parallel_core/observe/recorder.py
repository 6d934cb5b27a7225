"""Span recording: always on, and cheap enough for that (appending a tuple to a list, well under 1 us per span).

    recorder = SpanRecorder(capacity=20_000, stage=0, replica=0)
    recorder.begin_step(step)
    start = recorder.mark()
    ...                                     # the work
    recorder.add(Kind.F, LANE_COMPUTE, 0, micro_batch, start, recorder.mark())
    spans = recorder.end_step()             # SPAN rows of this step, the STEP row first
    recorder.total                          # spans recorded in it; more than len(spans) beyond the capacity

or, to read many steps at once, which costs less than one after the other:

    recorder.keep_step()                    # after each step
    recorder.take_kept()                    # the SPAN rows of the steps kept since the last call

`cuda_recorder.CudaSpanRecorder` has the same interface for a CUDA device, on which marks are events.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from parallel_core.observe.records import LANES, SPAN
from parallel_core.observe.unix_time import UnixTime
from parallel_core.schedule.ir import COLLECTIVES, COMPUTE, P2P, Kind

LANE_COMPUTE, LANE_P2P, LANE_COLLECTIVE, LANE_HOST = range(len(LANES))

Mark = Any
"""A point in time: ns of CLOCK_MONOTONIC (int) or, on a CUDA device, a recorded event."""

Tie = tuple[Any, int]
"""A CUDA event, and when it happened: ns of CLOCK_MONOTONIC."""

Row = tuple[int, int, int, int, int, int, Mark, Mark, int]
"""A span as it was recorded: the fields of SPAN, with marks as start and end."""


def lane_of(kind: Kind) -> int:
    """The lane of the spans of this kind, executed or simulated."""
    if kind in COMPUTE:
        return LANE_COMPUTE
    if kind in P2P:
        return LANE_P2P
    return LANE_COLLECTIVE if kind in COLLECTIVES else LANE_HOST


class Kept(NamedTuple):
    """Some steps in order: number and end (unix seconds) of each, and the SPAN `rows` of all, with their STEP rows."""

    steps: list[int]
    times: list[float]
    rows: np.ndarray


class _KeptStep(NamedTuple):
    """A step as it was recorded: its number, its end (unix seconds), its rows, and whether it is traced."""

    step: int
    time: float
    rows: list[Row]
    traced: bool


class SpanRecorder:
    """Records the spans of one step at a time. `capacity`: how many rows of a step are kept (the first ones); all are
    counted.

    `stage` and `replica` only label the STEP row that `end_step` adds. `mark` is a function, not a method, so that it
    costs a single call into C.
    """

    mark: Callable[[], Mark]
    KEPT = 1024
    """Most spans of a step for every step to be kept, see `keep_step`."""

    def __init__(self, capacity: int = 100_000, *, stage: int = 0, replica: int = 0) -> None:
        self.mark = time.monotonic_ns
        self.step = -1
        self.total = 0
        self._capacity, self._stage, self._replica = capacity, stage, replica
        self._rows: list[Row] = []
        self._append = self._rows.append
        self._begin: Mark = 0
        self._end: Mark = None
        self._kept: list[_KeptStep] = []
        self._now = UnixTime()

    @property
    def idle(self) -> bool:
        """Whether nothing of the step that ended last is still under way on the device."""
        return True

    def idle_since(self) -> int | None:
        """Returns since when (ns of CLOCK_MONOTONIC) the recorder is `idle`; None where it is not or this is not known.

        A CUDA device's is known after a `take_kept` that could tie the clocks, until the next step begins.
        """
        return cast("int | None", self._end)

    def begin_step(self, step: int) -> None:
        """Discards the spans of the last step, unless it is kept, and opens the STEP span of this one."""
        self.step, self._end = step, None
        self._rows.clear()
        self._begin = self.mark()

    def add(
        self,
        kind: int,
        lane: int,
        stage: int,
        micro_batch: int,
        start: Mark,
        end: Mark,
        bytes: int = 0,
        replica: int = 0,
        version: int = 0,
    ) -> None:
        """Adds a span. `kind`: schedule.ir.Kind; `lane`: index into records.LANES; `bytes`: bytes communicated."""
        self._append((kind, lane, stage, micro_batch, replica, version, start, end, bytes))

    def end_step(self) -> np.ndarray:
        """Returns the SPAN rows of the step: its STEP row, then the others in the order in which they were added."""
        return np.array(self._resolve(self._close()), dtype=SPAN)

    def keep_step(self, traced: bool = False) -> bool:
        """Ends the step; returns whether its rows are kept for `take_kept`.

        Every step of up to KEPT spans is kept, of longer ones only every 2nd, 4th, ..., to bound the cost of reading
        them. The steps that the rank with the most spans keeps are kept by all ranks. `traced` steps are always kept,
        those cut by the capacity never. While a CUDA device does not answer, at most HELD are kept, traced ones first.
        """
        rows = self._close()
        every = 1 << ((self.total - 1) // self.KEPT).bit_length()
        due = traced or self.step % every == every - 1
        if not due or self.total > len(rows) or not self._has_room(traced):
            return False
        self._kept.append(_KeptStep(self.step, self._now(), rows, traced))
        return True

    def wait(self) -> None:
        """Waits for what the device does of the step that ended last and of those that are kept."""

    def take_kept(self, *, whole: bool = False) -> Kept | None:
        """Returns the steps kept since the last call, unless the device still works on them; None where there are none.

        `whole`, after `wait`: all of them, also those of a device on which the clocks cannot be tied without a wait.
        """
        return self._take(len(self._kept)) if self._kept else None

    def _has_room(self, traced: bool) -> bool:
        """Returns whether one more step, `traced` or not, can be kept."""
        return True

    def _take(self, count: int, tie: Tie | None = None) -> Kept:
        taken = self._kept[:count]
        del self._kept[:count]
        rows = np.array(self._resolve([row for one in taken for row in one.rows], tie), dtype=SPAN)
        return Kept([one.step for one in taken], [one.time for one in taken], rows)

    def _close(self) -> list[Row]:
        """Ends the step's span, once, and returns its rows as they were recorded."""
        if self._end is None:
            self._end = self.mark()
        step: Row = (Kind.STEP, LANE_HOST, self._stage, -1, self._replica, 0, self._begin, self._end, 0)
        self.total = len(self._rows) + 1
        return [step, *self._rows[: self._capacity - 1]]

    def _resolve(self, rows: list[Row], tie: Tie | None = None) -> list[Row]:
        """Converts marks to nanoseconds; on a CPU they already are."""
        return rows
