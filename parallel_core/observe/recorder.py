"""Span recording: always on, and cheap enough for that (appending a tuple to a list, well under 1 us per span).

    recorder = SpanRecorder(capacity=20_000, stage=0, replica=0)
    recorder.begin_step(step)
    start = recorder.mark()
    ...                                     # the work
    recorder.add(Kind.F, LANE_COMPUTE, 0, micro_batch, start, recorder.mark())
    spans = recorder.end_step()             # SPAN rows of this step, the STEP row first
    recorder.total                          # spans recorded in it; more than len(spans) beyond the capacity

`CudaSpanRecorder` has the same interface; its marks are events of the current stream, converted to the host's
monotonic clock at the end of the step, so that nothing waits for the device in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from parallel_core.observe.records import LANES, SPAN
from parallel_core.schedule.ir import Kind

LANE_COMPUTE, LANE_P2P, LANE_COLLECTIVE, LANE_HOST = range(len(LANES))

Mark = Any
"""A point in time: ns of CLOCK_MONOTONIC (int) or, on a CUDA device, a recorded event."""

_Row = tuple[int, int, int, int, int, int, Mark, Mark, int]


class SpanRecorder:
    """Records the spans of one step at a time. `capacity`: how many rows of a step are kept (the first ones); all are
    counted.

    `stage` and `replica` only label the STEP row that `end_step` adds. `mark` is a function, not a method, so that it
    costs a single call into C.
    """

    mark: Callable[[], Mark]

    def __init__(self, capacity: int = 100_000, *, stage: int = 0, replica: int = 0) -> None:
        self.mark = time.monotonic_ns
        self.step = -1
        self.total = 0
        self._capacity, self._stage, self._replica = capacity, stage, replica
        self._rows: list[_Row] = []
        self._append = self._rows.append
        self._begin: Mark = 0

    def begin_step(self, step: int) -> None:
        """Discards the spans of the last step and opens the STEP span of this one."""
        self.step = step
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
        step: _Row = (Kind.STEP, LANE_HOST, self._stage, -1, self._replica, 0, self._begin, self.mark(), 0)
        self.total = len(self._rows) + 1
        return np.array(self._resolve([step, *self._rows[: self._capacity - 1]]), dtype=SPAN)

    def _resolve(self, rows: list[_Row]) -> list[_Row]:
        """Converts marks to nanoseconds; on a CPU they already are."""
        return rows


class CudaSpanRecorder(SpanRecorder):
    """Recorder whose marks are CUDA events of the current stream; plain ns (host work) may be mixed in.

    Event times have a resolution of about 0.5 us. Events are pooled: after the first steps none are allocated.
    """

    def __init__(self, capacity: int = 100_000, *, stage: int = 0, replica: int = 0) -> None:
        super().__init__(capacity, stage=stage, replica=replica)
        self.mark = self._event
        self._pool: list[Any] = []
        self._used = 0

    def begin_step(self, step: int) -> None:
        self._used = 0
        super().begin_step(step)

    def _event(self) -> Any:
        import torch

        if self._used == len(self._pool):
            self._pool.append(torch.cuda.Event(enable_timing=True))
        event = self._pool[self._used]
        self._used += 1
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
