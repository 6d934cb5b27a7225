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

_PAGE = struct.Struct("=qqq40s")
"""Fields of a page: step, CLOCK_MONOTONIC ns, pid, operation (UTF-8, NUL-padded)."""
STARTING = "starting"
"""The operation of a rank that has not come to connecting yet."""
CONNECTING = "connecting"
"""The operation of a rank that waits for the others, or joins them."""
NO_STEPS = -2
"""The step of a rank that measures, and so never has one: costs for a profile, or links."""
_STEP, _TIME, _PID = range(3)
"""Numbers of the fields that are 8 bytes."""
_OP = slice(_PAGE.size - 40, _PAGE.size)


@dataclass(frozen=True, slots=True)
class Where:
    """The operation that a rank last began. `age`: seconds since it began it, or a layer in it; step -1: not training
    yet; NO_STEPS: it only measures."""

    step: int
    op: str
    age: float
    pid: int


class Progress:
    """Writes one rank's page."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder = folder
        with path(folder, rank).open("w+b") as file:
            # Not just its size: the memory of a page that the disk has not cannot be used.
            file.write(bytes(_PAGE.size))
            file.flush()
            self._page = mmap.mmap(file.fileno(), _PAGE.size)
        # Each number is replaced whole. `pack_into` empties the page first, and a rank that the kernel interrupts there
        # would be one that never started.
        self._numbers = memoryview(self._page).cast("q")
        self._numbers[_PID] = os.getpid()
        self.at(-1, STARTING)

    def at(self, step: int, op: str) -> None:
        """Records that the rank begins `op` of `step`; at most 40 bytes of `op` are kept."""
        self._numbers[_STEP] = step
        self._page[_OP] = op.encode()[:40].ljust(40, b"\0")
        self._numbers[_TIME] = time.monotonic_ns()

    def moved(self) -> None:
        """Records that the rank gets on with its operation."""
        self._numbers[_TIME] = time.monotonic_ns()

    def close(self) -> None:
        """Gives up the page; nothing may be recorded after that."""
        self._numbers.release()
        self._page.close()


def path(folder: Path, rank: int) -> Path:
    """Returns the file of a rank's page."""
    return folder / f"progress-{rank}"


def read(folder: Path, rank: int) -> Where | None:
    """Returns the position of a rank; None where it has not started, or its page cannot be read. A page read during a
    write is off by at most one operation."""
    try:
        return read_or_raise(folder, rank)
    except OSError:
        return None


def read_or_raise(folder: Path, rank: int) -> Where | None:
    """As `read`, but raises OSError where there is a page that cannot be read: of that rank nothing is known."""
    try:
        page = path(folder, rank).read_bytes()
        step, moved, pid, op = _PAGE.unpack(page)
    except (FileNotFoundError, struct.error):
        return None
    if not moved:  # created, but not yet written
        return None
    age = max(0.0, (time.monotonic_ns() - moved) / 1e9)
    return Where(step, op.rstrip(b"\0").decode(errors="replace"), age, pid)
