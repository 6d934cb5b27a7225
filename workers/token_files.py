"""The token files in this worker's data folder, listed in a thread of its own because a network disk may not answer."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

from parallel_core.data import token_file

LOOK_S = 2.0


class TokenFiles(threading.Thread):
    """`known` = {name, tokens, vocab} of each file as last listed. A daemon thread: ends with the process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="token-files", daemon=True)
        self.known: list[dict[str, Any]] = []
        self._folder = folder

    def run(self) -> None:
        while True:
            self.look()
            time.sleep(LOOK_S)

    def look(self) -> None:
        """Lists them now; while that fails, the last list stays."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: a file was cut while it was mapped
            self.known = token_file.listing(self._folder)
