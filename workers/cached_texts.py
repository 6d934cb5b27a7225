"""Which uploaded texts are in this worker's cache, listed in a thread of its own because its disk may not answer."""

from __future__ import annotations

import contextlib
from pathlib import Path

from workers.contract import MOST_TEXTS
from workers.corpora import BLOB
from workers.periodic import Periodic


class CachedTexts(Periodic):
    """`shown` = sha256 of at most MOST_TEXTS of them, in order; if there are more, every look shows the next ones."""

    def __init__(self, folder: Path) -> None:
        super().__init__("cached-texts")
        self.shown: list[str] = []
        self._folder = folder

    def look(self) -> None:
        """Lists them now; while that fails, the last list stays."""
        with contextlib.suppress(OSError):
            every = sorted(path.name for path in self._folder.glob("*") if BLOB.match(path.name))
            last = self.shown[-1] if self.shown else ""
            later = [name for name in every if name > last]
            self.shown = (later if later and len(every) > MOST_TEXTS else every)[:MOST_TEXTS]
