"""Reads the files of a rank piece by piece, as the relay publishes them, cut where the contract requires it.

Offsets are positions in the *published* stream of a file. For events they are positions in the file itself. A log
longer than MAX_LOG_BYTES is published as head, one line that says so, and tail: its stream is shorter than its file.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

from parallel_core.observe import records
from workers.contract import MAX_BATCH_BYTES, MAX_LOG_BYTES, Channel

log = logging.getLogger(__name__)


class Tail(Protocol):
    """`read(start, final)` returns the next bytes from `start` on: b"" = nothing more (yet, or if `final`, at all).

    `final` says that no process writes the file any more.
    """

    def read(self, start: int, final: bool) -> bytes: ...


def open_tail(folder: Path, channel: Channel, rank: int) -> Tail:
    if channel == "events":
        return EventTail(records.events_path(folder, rank))
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
    """Whole frames, at most `limit` bytes of them; a larger frame is read whole. An incomplete last frame is never
    read."""

    def __init__(self, path: Path, limit: int = MAX_BATCH_BYTES) -> None:
        self.path = path
        self.limit = limit

    def read(self, start: int, final: bool) -> bytes:
        size = size_of(self.path)
        window = self.limit
        while start < size:
            data = read_range(self.path, start, min(size, start + window))
            end = self._last_boundary(data, start, first_only=window > self.limit)
            if end or start + window >= size:
                return data[:end]
            window *= 2  # the frame is larger than the window
        return b""

    def _last_boundary(self, data: bytes, start: int, first_only: bool) -> int:
        """Bytes of `data` that are whole frames. Bytes that are no frame end the stream there, as they can never be
        read."""
        end = 0
        try:
            for frame in records.decode(data, start):
                end = frame.end - start
                if first_only:
                    break
        except ValueError as error:
            if not end:
                log.warning("%s: %s; nothing behind it is published", self.path, error)
        return end


class LogTail:
    """While the rank lives, the first half of the limit is published; the rest once the size of the file is final.

    A log that does not exist yet is empty.
    """

    def __init__(self, path: Path, limit: int = MAX_BATCH_BYTES, most: int = MAX_LOG_BYTES) -> None:
        self.path = path
        self.limit = limit
        self.most = most
        self.head = most // 2

    def read(self, start: int, final: bool) -> bytes:
        size = size_of(self.path)
        if not final or size <= self.most:
            until = min(size, self.head) if not final else size
            return read_range(self.path, start, min(until, start + self.limit)) if start < until else b""
        return self._read_capped(start, size)

    def _read_capped(self, start: int, size: int) -> bytes:
        """The stream of a log over the limit: head, marker line, tail."""
        if start < self.head:
            return read_range(self.path, start, min(self.head, start + self.limit))
        tail = self.most - self.head
        marker = f"\n[... {self.most} of {size} bytes are kept; here {size - self.most} are left out ...]\n".encode()
        at = start - self.head
        if at < len(marker):
            return marker[at:]
        begin = size - tail + at - len(marker)
        return read_range(self.path, begin, min(size, begin + self.limit)) if begin < size else b""
