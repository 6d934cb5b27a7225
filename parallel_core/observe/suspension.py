"""Measures for how long this process has been watching without interruption.

Whatever stops a whole host (a paused container, a machine that is migrated or suspended) stops ranks and watcher
alike, so that time must not count against the ranks.
"""

from __future__ import annotations

import time

BREAK_S = 5.0
"""Seconds between two calls that count as an interruption: the supervisor calls several times a second, unless it was
stopped itself."""


class SuspensionDetector:
    """Detects interruptions of this process; `watched` must be called regularly."""

    def __init__(self) -> None:
        self._since = self._last = time.monotonic()

    def watched(self) -> float:
        """Returns the seconds of watching since the last interruption."""
        now = time.monotonic()
        if now - self._last > BREAK_S:
            self._since = now
        self._last = now
        return now - self._since
