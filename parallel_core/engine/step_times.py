"""Wall time of the steps of a rank."""

from __future__ import annotations

import time
from array import array


class StepTimes:
    """Measures wall time from the end of one step to the end of the next; keeps the times after `warmup` steps."""

    def __init__(self, warmup: int) -> None:
        self.timed = array("d")  # 8 bytes a step: a run may have millions
        self._warmup, self._count = warmup, 0
        self._last = time.perf_counter()

    def restart(self) -> None:
        """Measures the next step from now on."""
        self._last = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Excludes `seconds` that the rank spent on other work since the last step."""
        self._last += seconds

    def ended(self) -> float:
        """Ends a step; returns its seconds."""
        now = time.perf_counter()
        took, self._last = now - self._last, now
        if self._count >= self._warmup:
            self.timed.append(took)
        self._count += 1
        return took
