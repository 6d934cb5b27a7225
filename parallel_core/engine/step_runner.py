"""Runs the training steps in order: one by one (`FlushingRunner`), or in a pipeline that stays full
(`StreamingRunner`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from parallel_core.engine.executor import Executor
from parallel_core.engine.norm import Gathering, StepTotals, Totals
from parallel_core.engine.stage import Batch
from parallel_core.engine.stop import Judge, Reason
from parallel_core.engine.stream import Staleness, StreamExecutor
from parallel_core.schedule.stream import Windows, steps_apart, stream_end
from parallel_core.spec import RunSpec, TrainSpec

Read = Callable[[int], Batch]
"""Reads this rank's part of the batch of a step."""


class StepRunner(Protocol):
    """Runs steps in order."""

    judge: Judge
    """Has seen the totals that are known."""

    @property
    def stopping(self) -> Reason:
        """Why all ranks stop after the last step run, which then ended with an empty pipeline."""

    @property
    def drained(self) -> bool:
        """Whether the last step run ended with an empty pipeline: no rank is at an earlier step."""

    def advance(self, step: int) -> list[Totals]:
        """Runs the step; returns the totals of steps that are known by now, possibly of earlier steps."""

    def settle(self) -> list[Totals]:
        """Waits for the remaining totals of all steps run so far and returns them."""

    def extend(self, steps: range) -> None:
        """Allows for `steps` after the last of the run: without a flush, they fill and drain the pipeline once."""

    @property
    def staleness(self) -> Staleness | None:
        """Staleness of the gradients of the last step; None under a flush, where gradients cannot be stale."""


class FlushingRunner:
    """Runs a pipeline that flushes: every step ends with an empty pipeline and with its totals."""

    staleness = None
    drained = True

    def __init__(self, train: TrainSpec, executor: Executor, read: Read) -> None:
        self._executor, self._read = executor, read
        self.judge = Judge(train)

    @property
    def stopping(self) -> Reason:
        return self.judge.reason

    def advance(self, step: int) -> list[Totals]:
        totals = self._executor.run(self._read(step))
        self.judge.see(totals, step)
        return [totals]

    def settle(self) -> list[Totals]:
        return []

    def extend(self, steps: range) -> None:
        """Nothing depends on how many steps follow."""


class StreamingRunner:
    """Runs a pipeline without a flush: it drains after the last step, where a checkpoint is due, and where the run is
    stopped."""

    def __init__(
        self, spec: RunSpec, executor: StreamExecutor, totals: StepTotals, windows: Windows, read: Read
    ) -> None:
        self._executor, self._totals, self._windows, self._read = executor, totals, windows, read
        self._train = spec.train
        self._lag = steps_apart(spec)
        """Steps after which totals are waited for."""
        self._begin = self._end = -1
        self._batches: deque[Batch] = deque()
        self._under_way: deque[Gathering] = deque()
        self._drained = True
        self.judge = Judge(spec.train)

    @property
    def stopping(self) -> Reason:
        return self.judge.reason if self._drained else Reason.NONE

    @property
    def drained(self) -> bool:
        return self._drained

    @property
    def staleness(self) -> Staleness | None:
        return self._executor.staleness

    def advance(self, step: int) -> list[Totals]:
        if not self._begin <= step < self._end:
            self._begin, self._end = step, max(stream_end(self._train, step), step + 1)
        at, steps = step - self._begin, self._end - self._begin
        wanted = 1 + self._executor.ahead(at, steps)
        while len(self._batches) < wanted:
            self._batches.append(self._read(step + len(self._batches)))
        self._under_way.append(self._executor.run(at, steps, tuple(self._batches)))
        self._batches.popleft()
        self._drained = step + 1 == self._end
        known = self._wait(0 if self._drained else self._lag)
        if self.judge.reason:
            self._end = min(self._end, step + 2 + self._windows.edge)  # the next step is already in flight
        return known

    def settle(self) -> list[Totals]:
        return self._wait(0)

    def extend(self, steps: range) -> None:
        self._begin, self._end = steps.start, steps.stop

    def _wait(self, left: int) -> list[Totals]:
        """Waits for the totals of all but the last `left` steps and returns them."""
        known = [self._totals.result(self._under_way.popleft()) for _ in range(len(self._under_way) - left)]
        for totals in known:
            self.judge.see(totals, totals.step)
        return known
