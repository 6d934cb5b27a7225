"""The time of day in the records of a rank. It never goes back, whoever sets the clock of the host during a run."""

from __future__ import annotations

import time

_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Also counts, on Linux and macOS, the time for which a laptop sleeps."""


class UnixTime:
    """Returns the Unix seconds by the host's clock when this was made, and the seconds that have passed since."""

    def __init__(self) -> None:
        self._ahead = time.time() - time.clock_gettime(_ELAPSED)

    def __call__(self) -> float:
        return self._ahead + time.clock_gettime(_ELAPSED)
