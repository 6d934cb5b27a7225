"""Reads the events of a rank piece by piece, from any offset of their stream, while the rank writes them."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import IO, NamedTuple

from parallel_core.observe.record_files import decode, events_path, segments, skim
from parallel_core.observe.records import OMITTED

log = logging.getLogger(__name__)

READ_BYTES = 256 * 1024
MOST_OMITTED = 256 * OMITTED.itemsize
"""Bytes of `omitted` rows after which a batch ends: each becomes a row of the database, as does each span record, and
one transaction should not get far more of them from a batch than it does without."""


class Piece(NamedTuple):
    """The next bytes of a stream, and the offset of the byte behind them, which is not that of as many bytes later if
    `omitted` records are among them."""

    data: bytes
    end: int


class EventTail:
    """Whole frames of one segment, at most `limit` bytes of them; a larger frame is read whole. An incomplete last
    frame is never read.

    A segment may be replaced by a shorter one between two reads, but only by this thread.
    """

    def __init__(self, folder: Path, rank: int, limit: int = READ_BYTES) -> None:
        self.limit = limit
        self._folder, self._rank = folder, rank
        self._base = -1  # of the segment being read
        self._inode = -1
        self._places: dict[int, int] = {}
        """Offset in the stream -> position in the file of that inode: where the last read began and ended. Without
        them each read would begin with a search, also those that are repeated while the broker is away."""

    def read(self, start: int, final: bool) -> Piece:
        if not 0 <= self._base <= start:
            bases = [base for base, _ in segments(self._folder, self._rank) if base <= start]
            self._base = max(bases, default=0)
        piece = self._read(start)
        if not piece.data and start > self._base and events_path(self._folder, self._rank, start).exists():
            self._base = start
            piece = self._read(start)
        return piece

    def _read(self, start: int) -> Piece:
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            status, window = os.fstat(file.fileno()), self.limit
            at = self._position(file, status.st_ino, start)
            self._inode, self._places = status.st_ino, {start: at}
            while at < status.st_size:
                file.seek(at)
                data = file.read(min(window, status.st_size - at))
                length, end = self._last_boundary(data, start, first_only=window > self.limit)
                if length or at + window >= status.st_size:
                    self._places[end] = at + length
                    return Piece(data[:length], end)
                window *= 2  # the frame is larger than the window
        return Piece(b"", start)

    @property
    def _path(self) -> Path:
        return events_path(self._folder, self._rank, self._base)

    def _position(self, file: IO[bytes], inode: int, start: int) -> int:
        """Where in the segment the frame begins that has byte `start` of the stream. A segment may have any size: only
        its headers are read."""
        if inode == self._inode and start in self._places:
            return self._places[start]
        at, begin = 0, self._base
        if start > begin:
            with contextlib.suppress(ValueError):
                for frame in skim(file, begin):
                    if frame.end > start:
                        return at if frame.kind == "omitted" else at + start - begin
                    at, begin = at + frame.size, frame.end
        return at + start - begin

    def _last_boundary(self, data: bytes, start: int, first_only: bool) -> tuple[int, int]:
        """(bytes of `data` that are whole frames, offset of their end in the stream). Bytes that are no frame end the
        stream there, as they can never be read."""
        length, end, omitted = 0, start, 0
        try:
            for frame in decode(data, start):
                length, end = length + frame.size, frame.end
                omitted += len(frame.blob) if frame.kind == "omitted" else 0
                if first_only or omitted >= MOST_OMITTED:
                    break
        except ValueError as error:
            if not length:
                log.warning("%s: %s; nothing behind it is published", self._path, error)
        return length, end
