"""Emits what a rank's steps consisted of (`waits` records), from which their shares follow (analysis.step_waits)."""

from __future__ import annotations

import time

from parallel_core.analysis.step_waits import StepWaits, reduced
from parallel_core.analysis.waits import blocked_in
from parallel_core.engine.clocks import Clock
from parallel_core.layout import Layout
from parallel_core.observe.record_files import Sink
from parallel_core.observe.recorder import SpanRecorder


class StepMeter:
    """Meters the steps of one rank: keeps the spans of each, and reduces those of many at once, between two steps."""

    def __init__(self, recorder: SpanRecorder, rank: int, layout: Layout) -> None:
        self._recorder, self._kinds = recorder, blocked_in(rank, layout)
        self._spent = 0.0

    def ended(self, traced: bool) -> None:
        """Ends the recorder's step. Called before anything else is done after it. `traced`: all ranks emit its spans,
        so it has to have its shares, too."""
        self._recorder.keep_step(traced)

    def emit(self, sink: Sink, clock: Clock, *, whole: bool) -> None:
        """Emits the steps since the last call, if any, except those on which a CUDA device still works; with `whole` it
        waits for these."""
        if whole:
            self._recorder.wait()
        idle, start = self._recorder.idle, time.monotonic_ns()
        self._emit(sink, clock, whole)
        since = start if idle else self._recorder.idle_since()
        if since is not None:
            self._spent += max(0, time.monotonic_ns() - max(start, since)) / 1e9

    def spent(self) -> float:
        """Returns for how many seconds `emit` kept the device idle since the last call, which delayed the next step.
        It is a lower bound: an `emit` during which the device became idle at an unknown moment counts as 0."""
        spent, self._spent = self._spent, 0.0
        return spent

    def _emit(self, sink: Sink, clock: Clock, whole: bool) -> None:
        kept = self._recorder.take_kept(whole=whole)
        if kept is None:
            return
        found = reduced(kept.rows, self._kinds, kept.steps, kept.times)
        moved = StepWaits(found.sums, clock.moved(found.rows, "start", "end"))
        sink.emit("waits", moved.pack(), steps=len(kept.steps), **clock.told())
