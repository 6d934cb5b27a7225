"""The time of day in the records of a rank. It never goes back, whoever sets the clock of the host during a run."""

from __future__ import annotations

import time


class UnixTime:
    """Returns the Unix seconds by the host's clock when this was made, and the seconds that have passed since."""

    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()

    def __call__(self) -> float:
        return self._ahead + time.monotonic()
