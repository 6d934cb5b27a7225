"""What a worker asks of its host again and again, in a thread of its own because the answer may never come."""

from __future__ import annotations

import threading
import time

LOOK_S = 10.0
"""Seconds between two looks, unless the thread has an interval of its own."""


class Periodic(threading.Thread):
    """Calls `look` every `interval` seconds. A daemon thread: ends with the process."""

    def __init__(self, name: str, interval: float = LOOK_S) -> None:
        super().__init__(name=name, daemon=True)
        self._interval = interval

    def run(self) -> None:
        while True:
            self.look()
            time.sleep(self._interval)

    def look(self) -> None:
        """Looks once, now; what cannot be found out stays as it is."""
        raise NotImplementedError
