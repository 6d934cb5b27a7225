"""What is left on the disk where checkpoints go, asked in a thread of its own: a network's disk may not answer."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from pathlib import Path

LOOK_S = 10.0


class Disk(threading.Thread):
    """`free` is what it said last, in bytes; None before that. Ends with the process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="disk", daemon=True)
        self.free: int | None = None
        self._folder = folder

    def run(self) -> None:
        while True:
            self.look()
            time.sleep(LOOK_S)

    def look(self) -> None:
        """Asks now; the folder need not be there yet."""
        folder = self._folder
        with contextlib.suppress(OSError):
            while not folder.exists():
                folder = folder.parent
            self.free = shutil.disk_usage(folder).free
