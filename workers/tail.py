"""Reads the files of a rank piece by piece, as the relay publishes them, cut where the contract requires it.

Offsets are positions in the *published* stream of a file. For events they are positions in what the rank has written,
whatever its files have been shortened to since (see `parallel_core.observe.spool`). A log longer than half of
MAX_LOG_BYTES is published as head, a line that says so, and tail; of one longer than MAX_LOG_BYTES a second line says
how much is left out between them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from parallel_core.observe import record_files
from parallel_core.observe.event_tail import EventTail, Piece
from workers.contract import MAX_BATCH_BYTES, MAX_LOG_BYTES, Channel


class Tail(Protocol):
    """`read(start, final)` returns what comes next from `start` on: no bytes = nothing more (yet, or if `final`, at
    all).

    `final` says that no process writes the file any more.
    """

    def read(self, start: int, final: bool) -> Piece: ...


def open_tail(folder: Path, channel: Channel, rank: int) -> Tail:
    if channel == "events":
        return EventTail(folder, rank, MAX_BATCH_BYTES)
    return LogTail(record_files.log_path(folder, rank))


def size_of(path: Path) -> int:
    """0 without a file. Raises OSError where it cannot be asked: an end would else be told without the rest of it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def read_range(path: Path, start: int, end: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(end - start)


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
