"""The folders of Llama weights in this worker's data folder, listed in a thread of its own because a network disk may
not answer."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from parallel_core.checkpoint import weights_listing
from workers.periodic import Periodic

LOOK_S = 5.0


class Weights(Periodic):
    """`known` = the folders as last listed; None before that."""

    def __init__(self, folder: Path) -> None:
        super().__init__("weights", LOOK_S)
        self.known: list[dict[str, Any]] | None = None
        self._read: weights_listing.Known = {}
        self._folder = folder

    def look(self) -> None:
        """Lists them now; while that fails, the last list stays."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: a file was cut while it was mapped
            self.known = weights_listing.listing(self._folder, self._read)
