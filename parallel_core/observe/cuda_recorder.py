"""Span recording on a CUDA device, with the interface of `recorder.SpanRecorder`.

Marks are events of the current stream, converted to the host's monotonic clock when rows are read, so that nothing
waits for the device in between. `take_kept` does not wait, either: it leaves the newest steps to the next call while
the device still works on them. Where no call follows, `wait` and `take_kept(whole=True)` leave none.
"""

from __future__ import annotations

import time
from itertools import takewhile
from typing import Any

from parallel_core.observe.recorder import Kept, Mark, Row, SpanRecorder, Tie


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

    def _resolve(self, rows: list[Row], tie: Tie | None = None) -> list[Row]:
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
