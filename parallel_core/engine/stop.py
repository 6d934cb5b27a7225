"""Orderly ends before the last step: on SIGTERM, at the run's time limit, or when its loss is not finite any more. All
ranks agree on the step after which they stop (norm.StepTotals)."""

from __future__ import annotations

import math
import signal
import time
from enum import IntEnum
from typing import TYPE_CHECKING

from parallel_core.analysis.quantities import count_text, plural_text, step_text, steps_text
from parallel_core.limits import NOT_FINITE_STEPS

if TYPE_CHECKING:
    from parallel_core.engine.norm import Totals
    from parallel_core.spec import TrainSpec


class Reason(IntEnum):
    """Why all ranks stop after a step. Where several hold, the greatest counts."""

    NONE = 0
    TIME_UP = 1
    NOT_FINITE = 2
    SIGNAL = 3


class AgreedEnd(Exception):
    """Ends training after a complete step, on all ranks after the same one."""


class Stopped(AgreedEnd):
    """Training was stopped by SIGTERM after a complete step, and saved there, unless its weights were `broken`."""

    def __init__(self, step: int, *, broken: bool = False) -> None:
        saved = "nothing was saved, as the loss is not finite" if broken else "a checkpoint of them was saved"
        super().__init__(f"stopped by SIGTERM with {plural_text(step, 'step')} done; {saved}")
        self.step = step


class LossNotFinite(AgreedEnd):
    """The loss was not finite in NOT_FINITE_STEPS steps in a row, from step `since` on; nothing was saved after it."""

    def __init__(self, since: int, done: int, steps: int) -> None:
        super().__init__(
            f"The loss is not finite since {step_text(since)}: ended after {count_text(done)} of {steps_text(steps)} "
            "(train.stop_on_nan), and saved nothing since."
        )
        self.since = since


class StopRequest:
    """`asked` is set once SIGTERM was received. Before `listen` the signal ends the process at once: there is nothing
    to save."""

    def __init__(self) -> None:
        self.asked = False
        self._until = math.inf

    def listen(self) -> None:
        """Installs the signal handler; must be called in the main thread."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "asked", True))

    def limit(self, minutes: float) -> None:
        """Sets the time limit, counted from now; 0 = none."""
        self._until = time.monotonic() + 60 * minutes if minutes else math.inf

    @property
    def reason(self) -> Reason:
        """Why this rank has to stop."""
        if self.asked:
            return Reason.SIGNAL
        return Reason.TIME_UP if time.monotonic() >= self._until else Reason.NONE


class Judge:
    """Decides from the totals of all ranks, so alike on every rank, whether they stop and whether the state may be
    saved. It has to see the totals of every step, in order."""

    def __init__(self, train: TrainSpec) -> None:
        self._watches, self._skips = train.stop_on_nan, train.precision == "fp16"
        self._bad = 0
        self.reason = Reason.NONE
        self.since = -1
        """The first of the last steps in a row whose loss is not finite; -1 where that of the last is."""
        self.broken = False
        """Whether the last step's loss, or a gradient that it applied, is not finite (False if nobody watches)."""

    def see(self, totals: Totals, step: int) -> None:
        """Takes account of the totals of `step`; `reason` says then whether to stop after it."""
        found = totals.stop
        if self._watches:
            bad = not math.isfinite(totals.loss)
            self.since = -1 if not bad else self.since if self._bad else step
            self._bad = self._bad + 1 if bad else 0
            self.broken = bad or not (self._skips or math.isfinite(totals.grad_norm))
            if self._bad >= NOT_FINITE_STEPS:
                found = max(found, Reason.NOT_FINITE)
        self.reason = max(self.reason, found)
