"""Free space on the disk for checkpoints, measured in a thread of its own because a network disk may not answer."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from workers.periodic import Periodic


class Disk(Periodic):
    """`free` = bytes free when last measured; None before that."""

    def __init__(self, folder: Path) -> None:
        super().__init__("disk")
        self.free: int | None = None
        self._folder = folder

    def look(self) -> None:
        """Measures now; the folder need not exist yet."""
        folder = self._folder
        with contextlib.suppress(OSError):
            while not folder.exists():
                folder = folder.parent
            self.free = shutil.disk_usage(folder).free
