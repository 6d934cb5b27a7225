"""The current position of each rank, in a 64-byte page per rank that any process of the host can read at any time.

The rank writes it before every operation and every layer (under 1 us, no system call); the supervisor reads it
for the heartbeat, for the message about a killed rank ("at step 12 in 1F3") and for the no-progress watchdog. A
memory-mapped file survives kill -9 of its writer.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

_PAGE = struct.Struct("<qqq40s")
"""Fields of a page: step, CLOCK_MONOTONIC ns, pid, operation (UTF-8, NUL-padded)."""
_TIME, _TIME_AT = struct.Struct("<q"), struct.calcsize("<q")
"""The second field, and its position."""


@dataclass(frozen=True, slots=True)
class Where:
    """The operation that a rank last began. `age`: seconds since it began it, or a layer in it; step -1: not training
    yet."""

    step: int
    op: str
    age: float
    pid: int


class Progress:
    """Writes one rank's page."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        with path(folder, rank).open("w+b") as file:
            file.write(
                bytes(_PAGE.size)
            )  # not just its size: the memory of a page that the disk has not cannot be used
            file.flush()
            self._page = mmap.mmap(file.fileno(), _PAGE.size)
        self._pid = os.getpid()
        self.at(-1, "starting")

    def at(self, step: int, op: str) -> None:
        """Records that the rank begins `op` of `step`; at most 40 bytes of `op` are kept."""
        _PAGE.pack_into(self._page, 0, step, time.monotonic_ns(), self._pid, op.encode())

    def moved(self) -> None:
        """Records that the rank gets on with its operation."""
        _TIME.pack_into(self._page, _TIME_AT, time.monotonic_ns())

    def close(self) -> None:
        self._page.close()


def path(folder: Path, rank: int) -> Path:
    """Returns the file of a rank's page."""
    return folder / f"progress-{rank}"


def read(folder: Path, rank: int) -> Where | None:
    """Returns the position of a rank; None where it has not started. A page read during a write is off by at most one
    operation."""
    try:
        page = path(folder, rank).read_bytes()
        step, moved, pid, op = _PAGE.unpack(page)
    except (OSError, struct.error):
        return None
    if not moved:  # created, but not yet written
        return None
    age = max(0.0, (time.monotonic_ns() - moved) / 1e9)
    return Where(step, op.rstrip(b"\0").decode(errors="replace"), age, pid)
