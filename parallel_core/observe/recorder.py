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

`CudaSpanRecorder` has the same interface; its marks are events of the current stream, converted to the host's
monotonic clock when rows are read, so that nothing waits for the device in between. `take_kept` does not wait, either:
it leaves the newest steps to the next call while the device still works on them. Where no call follows, `wait` and
`take_kept(whole=True)` leave none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import takewhile
from typing import Any, NamedTuple, cast

import numpy as np

from parallel_core.observe.records import LANES, SPAN
from parallel_core.schedule.ir import Kind

LANE_COMPUTE, LANE_P2P, LANE_COLLECTIVE, LANE_HOST = range(len(LANES))

Mark = Any
"""A point in time: ns of CLOCK_MONOTONIC (int) or, on a CUDA device, a recorded event."""

Tie = tuple[Any, int]
"""A CUDA event, and when it happened: ns of CLOCK_MONOTONIC."""

_Row = tuple[int, int, int, int, int, int, Mark, Mark, int]


class Kept(NamedTuple):
    """Some steps in order: number and end (unix seconds) of each, and the SPAN `rows` of all, with their STEP rows."""

    steps: list[int]
    times: list[float]
    rows: np.ndarray


class _KeptStep(NamedTuple):
    """A step as it was recorded: its number, its end (unix seconds), its rows, and whether it is traced."""

    step: int
    time: float
    rows: list[_Row]
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
        self._rows: list[_Row] = []
        self._append = self._rows.append
        self._begin: Mark = 0
        self._end: Mark = None
        self._kept: list[_KeptStep] = []

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
        self._kept.append(_KeptStep(self.step, time.time(), rows, traced))
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

    def _close(self) -> list[_Row]:
        """Ends the step's span, once, and returns its rows as they were recorded."""
        if self._end is None:
            self._end = self.mark()
        step: _Row = (Kind.STEP, LANE_HOST, self._stage, -1, self._replica, 0, self._begin, self._end, 0)
        self.total = len(self._rows) + 1
        return [step, *self._rows[: self._capacity - 1]]

    def _resolve(self, rows: list[_Row], tie: Tie | None = None) -> list[_Row]:
        """Converts marks to nanoseconds; on a CPU they already are."""
        return rows


class CudaSpanRecorder(SpanRecorder):
    """Recorder whose marks are CUDA events of the current stream; plain ns (host work) may be mixed in.

    Event times have a resolution of about 0.5 us. Events are pooled: after the first steps none are allocated.
    """

    KEPT = 64  # to read an event takes the host about a microsecond
    HELD = 2048
    """Most steps kept at once: more than there are, unless the device does not answer, see `_tie`."""
    TIE_NS = 200_000
    """Longest wait for an event of a stream without work; half of it is the largest error of the tie that it gives."""

    def __init__(self, capacity: int = 100_000, *, stage: int = 0, replica: int = 0) -> None:
        import torch

        super().__init__(capacity, stage=stage, replica=replica)
        self.mark = self._event
        self._free: list[Any] = []
        self._used: list[Any] = []
        self._held: list[list[Any]] = []
        """The events of each kept step."""
        # Of high priority, because NCCL takes streams of the pool of low priority, which has only 32 for all.
        self._aside = torch.cuda.Stream(priority=-1)
        self._anchor = torch.cuda.Event(enable_timing=True)
        self._tied: Tie | None = None
        """That of the `take_kept` since the last step."""

    @property
    def idle(self) -> bool:
        return self._end is None or bool(self._end.query())

    def idle_since(self) -> int | None:
        if self._tied is None or self._end is None or not self._end.query():
            return None
        return _host_ns(self._end, self._tied)

    def begin_step(self, step: int) -> None:
        self._free += self._used
        self._used = []
        self._tied = None
        super().begin_step(step)

    def keep_step(self, traced: bool = False) -> bool:
        kept = super().keep_step(traced)
        if kept:
            self._held.append(self._used)
            self._used = []
        return kept

    def wait(self) -> None:
        for events in self._held:
            for event in events:
                event.synchronize()
        if self._end is not None:
            self._end.synchronize()

    def take_kept(self, *, whole: bool = False) -> Kept | None:
        if not self._held or not _done(self._held[0]):
            return None
        # Before the other steps are asked for: as long as there is no tie they become more, and asking takes longer.
        self._tied = self._tie() or (self._tie_here() if whole else None)
        if self._tied is None:
            return None
        done = list(takewhile(_done, self._held))
        kept = self._take(len(done), self._tied)
        self._free += [event for events in done for event in events]
        del self._held[: len(done)]
        return kept

    def _has_room(self, traced: bool) -> bool:
        """Makes room where HELD steps are kept: drops the oldest that is not traced, or the oldest traced one, but that
        only for another traced one."""
        if len(self._kept) < self.HELD:
            return True
        oldest = next((i for i, one in enumerate(self._kept) if not one.traced), 0 if traced else None)
        if oldest is None:
            return False
        del self._kept[oldest]
        self._free += self._held.pop(oldest)
        return True

    def _event(self) -> Any:
        import torch

        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        self._used.append(event)
        event.record()
        return event

    def _tie(self) -> Tie | None:
        """Ties the device's clock to the host's without a wait for queued work, by an event of a stream that has none.

        None where the event has not happened after TIE_NS, as on a device on which streams share a hardware queue. To
        wait longer might be a deadlock: see docs/engine.md, "NCCL deadlocks". None, too, where it has
        happened, but this thread was twice kept from running meanwhile, so that the error might be larger.
        """
        for _ in range(2):
            begun = time.monotonic_ns()
            self._anchor.record(self._aside)
            while not self._anchor.query() and time.monotonic_ns() - begun <= self.TIE_NS:
                pass
            end = time.monotonic_ns()
            if end - begun <= self.TIE_NS:
                return self._anchor, (begun + end) // 2
            if not self._anchor.query():
                return None
        return None

    def _tie_here(self) -> Tie:
        """Ties the clocks after the work queued so far. Its error is the time that this thread takes to notice."""
        anchor = self._event()
        anchor.synchronize()  # not the device: a receive posted ahead may wait for work this host has yet to queue
        return anchor, time.monotonic_ns()

    def _resolve(self, rows: list[_Row], tie: Tie | None = None) -> list[_Row]:
        """Converts marks by `tie`, for which all have happened; None: waits for them."""
        known = tie or self._tie_here()

        def ns(mark: Mark) -> int:
            if isinstance(mark, int):
                return mark
            if tie is None:
                mark.synchronize()  # it may belong to another stream, with `fully_shard`
            return _host_ns(mark, known)

        return [(*row[:6], ns(row[6]), ns(row[7]), row[8]) for row in rows]


def _done(events: list[Any]) -> bool:
    """Whether all these events have happened; the newest is asked first, as it is the last to happen."""
    return all(event.query() for event in reversed(events))


def _host_ns(event: Any, tie: Tie) -> int:
    """Converts when an event happened, before or after that of the tie, to ns of CLOCK_MONOTONIC."""
    anchor, host = tie
    return host - round(event.elapsed_time(anchor) * 1e6)


def recorder_for(device: str, capacity: int = 100_000, *, stage: int = 0, replica: int = 0) -> SpanRecorder:
    """Returns a recorder for a device kind, 'cpu' or 'cuda'."""
    made = CudaSpanRecorder if device == "cuda" else SpanRecorder
    return made(capacity, stage=stage, replica=replica)
