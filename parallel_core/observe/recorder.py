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
    recorder.take_kept()                    # the SPAN rows of all steps kept since the last call

`CudaSpanRecorder` has the same interface; its marks are events of the current stream, converted to the host's
monotonic clock when rows are read, so that nothing waits for the device in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from parallel_core.observe.records import LANES, SPAN
from parallel_core.schedule.ir import Kind

LANE_COMPUTE, LANE_P2P, LANE_COLLECTIVE, LANE_HOST = range(len(LANES))

Mark = Any
"""A point in time: ns of CLOCK_MONOTONIC (int) or, on a CUDA device, a recorded event."""

_Row = tuple[int, int, int, int, int, int, Mark, Mark, int]


class Kept(NamedTuple):
    """Some steps in order: number and end (unix seconds) of each, and the SPAN `rows` of all, with their STEP rows."""

    steps: list[int]
    times: list[float]
    rows: np.ndarray


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
        self._rows: list[_Row] = []
        self._append = self._rows.append
        self._begin: Mark = 0
        self._end: Mark = None
        self._kept: list[tuple[int, float, list[_Row]]] = []

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

    def keep_step(self) -> bool:
        """Ends the step, and keeps its rows for `take_kept`; returns whether it does.

        Steps with more than KEPT spans are kept only every second, fourth, ... time, so that reading them costs about
        as much. Ranks with other numbers of spans keep the same steps, or more. Steps cut by the capacity are not kept.
        """
        rows = self._close()
        every = 1 << ((self.total - 1) // self.KEPT).bit_length()
        if self.step % every or self.total > len(rows):
            return False
        self._kept.append((self.step, time.time(), rows))
        return True

    def take_kept(self) -> Kept | None:
        """Returns the steps kept since the last call; None where there are none."""
        if not self._kept:
            return None
        steps, times, parts = zip(*self._kept, strict=True)
        self._kept.clear()
        rows = np.array(self._resolve([row for part in parts for row in part]), dtype=SPAN)
        return Kept(list(steps), list(times), rows)

    def _close(self) -> list[_Row]:
        """Ends the step's span, once, and returns its rows as they were recorded."""
        if self._end is None:
            self._end = self.mark()
        step: _Row = (Kind.STEP, LANE_HOST, self._stage, -1, self._replica, 0, self._begin, self._end, 0)
        self.total = len(self._rows) + 1
        return [step, *self._rows[: self._capacity - 1]]

    def _resolve(self, rows: list[_Row]) -> list[_Row]:
        """Converts marks to nanoseconds; on a CPU they already are."""
        return rows


class CudaSpanRecorder(SpanRecorder):
    """Recorder whose marks are CUDA events of the current stream; plain ns (host work) may be mixed in.

    Event times have a resolution of about 0.5 us. Events are pooled: after the first steps none are allocated.
    """

    KEPT = 64  # to read an event takes the host about a microsecond

    def __init__(self, capacity: int = 100_000, *, stage: int = 0, replica: int = 0) -> None:
        super().__init__(capacity, stage=stage, replica=replica)
        self.mark = self._event
        self._free: list[Any] = []
        self._used: list[Any] = []
        self._held: list[Any] = []
        """Events of kept steps."""

    def begin_step(self, step: int) -> None:
        self._free += self._used
        self._used = []
        super().begin_step(step)

    def keep_step(self) -> bool:
        kept = super().keep_step()
        if kept:
            self._held += self._used
            self._used = []
        return kept

    def take_kept(self) -> Kept | None:
        kept = super().take_kept()
        self._free += self._held
        self._held = []
        return kept

    def _event(self) -> Any:
        import torch

        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        self._used.append(event)
        event.record()
        return event

    def _resolve(self, rows: list[_Row]) -> list[_Row]:
        anchor = self._event()
        anchor.synchronize()  # not the device: a receive posted ahead may wait for work this host has yet to queue
        host = time.monotonic_ns()

        def ns(mark: Mark) -> int:
            if isinstance(mark, int):
                return mark
            mark.synchronize()  # it may belong to another stream, with `fully_shard`
            return host - round(mark.elapsed_time(anchor) * 1e6)

        return [(*row[:6], ns(row[6]), ns(row[7]), row[8]) for row in rows]


def recorder_for(device: str, capacity: int = 100_000, *, stage: int = 0, replica: int = 0) -> SpanRecorder:
    """Returns a recorder for a device kind, 'cpu' or 'cuda'."""
    made = CudaSpanRecorder if device == "cuda" else SpanRecorder
    return made(capacity, stage=stage, replica=replica)
