"""Reads the files of a rank piece by piece, as the relay publishes them, cut where the contract requires it.

Offsets are positions in the *published* stream of a file. For events they are positions in what the rank has written,
whatever its files have been shortened to since (see `spool`). A log longer than half of MAX_LOG_BYTES is published as
head, a line that says so, and tail; of one longer than MAX_LOG_BYTES a second line says how much is left out between
them.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from parallel_core.observe import records
from workers.contract import MAX_BATCH_BYTES, MAX_LOG_BYTES, Channel

log = logging.getLogger(__name__)


MOST_OMITTED = 256 * records.OMITTED.itemsize
"""Bytes of `omitted` rows after which a batch ends: each becomes a row of the database, as does each span record, and
one transaction should not get far more of them from a batch than it does without."""


class Piece(NamedTuple):
    """The next bytes of a stream, and the offset of the byte behind them, which is not that of as many bytes later if
    `omitted` records are among them."""

    data: bytes
    end: int


class Tail(Protocol):
    """`read(start, final)` returns what comes next from `start` on: no bytes = nothing more (yet, or if `final`, at
    all).

    `final` says that no process writes the file any more.
    """

    def read(self, start: int, final: bool) -> Piece: ...


def open_tail(folder: Path, channel: Channel, rank: int) -> Tail:
    if channel == "events":
        return EventTail(folder, rank)
    return LogTail(records.log_path(folder, rank))


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_range(path: Path, start: int, end: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(end - start)


class EventTail:
    """Whole frames of one segment, at most `limit` bytes of them; a larger frame is read whole. An incomplete last
    frame is never read.

    A segment may be replaced by a shorter one between two reads, but only by this thread.
    """

    def __init__(self, folder: Path, rank: int, limit: int = MAX_BATCH_BYTES) -> None:
        self.limit = limit
        self._folder, self._rank = folder, rank
        self._base = -1  # of the segment being read
        self._inode = -1
        self._places: dict[int, int] = {}
        """Offset in the stream -> position in the file of that inode: where the last read began and ended. Without
        them each read would begin with a search, also those that are repeated while the broker is away."""

    def read(self, start: int, final: bool) -> Piece:
        if not 0 <= self._base <= start:
            bases = [base for base, _ in records.segments(self._folder, self._rank) if base <= start]
            self._base = max(bases, default=0)
        piece = self._read(start)
        if not piece.data and start > self._base and records.events_path(self._folder, self._rank, start).exists():
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
        return records.events_path(self._folder, self._rank, self._base)

    def _position(self, file: IO[bytes], inode: int, start: int) -> int:
        """Where in the segment the frame begins that has byte `start` of the stream. A segment may have any size: only
        its headers are read."""
        if inode == self._inode and start in self._places:
            return self._places[start]
        at, begin = 0, self._base
        if start > begin:
            with contextlib.suppress(ValueError):
                for frame in records.skim(file, begin):
                    if frame.end > start:
                        return at if frame.kind == "omitted" else at + start - begin
                    at, begin = at + frame.size, frame.end
        return at + start - begin

    def _last_boundary(self, data: bytes, start: int, first_only: bool) -> tuple[int, int]:
        """(bytes of `data` that are whole frames, offset of their end in the stream). Bytes that are no frame end the
        stream there, as they can never be read."""
        length, end, omitted = 0, start, 0
        try:
            for frame in records.decode(data, start):
                length, end = length + frame.size, frame.end
                omitted += len(frame.blob) if frame.kind == "omitted" else 0
                if first_only or omitted >= MOST_OMITTED:
                    break
        except ValueError as error:
            if not length:
                log.warning("%s: %s; nothing behind it is published", self._path, error)
        return length, end


class LogTail:
    """While the rank lives, the first half of the limit is published, then a line that says so; the rest once the size
    of the file is final.

    That line stays, so that what follows it has the same offsets whenever it is read. A log that does not exist yet is
    empty.
    """

    def __init__(self, path: Path, limit: int = MAX_BATCH_BYTES, most: int = MAX_LOG_BYTES) -> None:
        self.path = path
        self.limit = limit
        self.most = most
        self.head = most // 2

    def read(self, start: int, final: bool) -> Piece:
        data = self._next(start, final)
        return Piece(data, start + len(data))

    def _next(self, start: int, final: bool) -> bytes:
        size = size_of(self.path)
        if start < self.head or size <= self.head:
            return self._read(start, min(size, self.head))
        at, marker = start - self.head, self._marker(size, final)
        if at < len(marker):
            return marker[at:]
        tail = self.most - self.head
        return self._read(max(self.head, size - tail) + at - len(marker), size) if final else b""

    def _read(self, start: int, until: int) -> bytes:
        return read_range(self.path, start, min(until, start + self.limit)) if start < until else b""

    def _marker(self, size: int, final: bool) -> bytes:
        """What stands between head and tail. As long as the size may grow, only the beginning of it is known."""
        text = f"\n[... the first {self.head} bytes end here; the end follows once the attempt has ended ...]\n"
        if final and size > self.most:
            text += f"[... {self.most} of {size} bytes are kept; here {size - self.most} are left out ...]\n"
        return text.encode()
