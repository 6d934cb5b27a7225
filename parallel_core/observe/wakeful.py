"""For how long this process has watched without a break. What stops a whole host (a paused container, a machine that is
moved or suspended) stops ranks and watcher alike: that time says nothing about the ranks."""

from __future__ import annotations

import time

BREAK_S = 5.0
"""Between two looks. The supervisor looks several times a second; it is this late only when it was stopped itself."""


class Wakeful:
    """To be asked at every look."""

    def __init__(self) -> None:
        self._since = self._last = time.monotonic()

    def watched(self) -> float:
        """Seconds of watching up to now, since the last break."""
        now = time.monotonic()
        if now - self._last > BREAK_S:
            self._since = now
        self._last = now
        return now - self._since
