"""The files of tokens and images in this worker's data folder, listed in a thread of its own because a network disk may
not answer."""

from __future__ import annotations

import contextlib
from pathlib import Path

from parallel_core.data import file_listing, image_file, token_file
from workers.periodic import Periodic

LOOK_S = 2.0


class TokenFiles(Periodic):
    """`known` = the token files as last listed, `images` = the image files; None before that."""

    def __init__(self, folder: Path) -> None:
        super().__init__("token-files", LOOK_S)
        self.known: file_listing.Listing | None = None
        self.images: file_listing.Listing | None = None
        self._read: file_listing.Known = {}
        self._read_images: file_listing.Known = {}
        self._folder = folder

    def look(self) -> None:
        """Lists them now; while that fails, the last list stays."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: a file was cut while it was mapped
            self.known = token_file.listing(self._folder, self._read)
        with contextlib.suppress(OSError, ValueError):
            self.images = image_file.listing(self._folder, self._read_images)
