"""What a worker asks of its host again and again, in a thread of its own because the answer may never come."""

from __future__ import annotations

import threading
import time

LOOK_S = 10.0


class Periodic(threading.Thread):
    """Calls `look` every LOOK_S seconds. A daemon thread: ends with the process."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)

    def run(self) -> None:
        while True:
            self.look()
            time.sleep(LOOK_S)

    def look(self) -> None:
        """Looks once, now; what cannot be found out stays as it is."""
        raise NotImplementedError
