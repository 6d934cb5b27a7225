"""Free space on the disk for checkpoints, measured in a thread of its own because a network disk may not answer."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from pathlib import Path

LOOK_S = 10.0


class Disk(threading.Thread):
    """`free` = bytes free when last measured; None before that. A daemon thread: ends with the process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="disk", daemon=True)
        self.free: int | None = None
        self._folder = folder

    def run(self) -> None:
        while True:
            self.look()
            time.sleep(LOOK_S)

    def look(self) -> None:
        """Measures now; the folder need not exist yet."""
        folder = self._folder
        with contextlib.suppress(OSError):
            while not folder.exists():
                folder = folder.parent
            self.free = shutil.disk_usage(folder).free
