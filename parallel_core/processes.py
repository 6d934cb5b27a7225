"""Processes of this host, identified by pid *and* start time, so that a reused pid is never taken for an earlier
process.

Does not import torch. On Linux it reads /proc; elsewhere, where `ps` would be too slow, a pid that accepts signal 0
counts as alive, and start_ticks is 0.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

LINUX = sys.platform.startswith("linux")
PARENT = "TRAINYARD_PARENT_PID"
"""Where `die_with_told_parent` reads which process this one ends with."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True) if LINUX else None
"""Loaded here, not in a child between fork and exec: another thread may have held the loader's lock at the fork."""
EXIT_MEMORY = 3
"""Exit code of a search, or of the reader of a trace, that ran out of memory."""

Recorded = tuple[int, int]
"""(pid, start_ticks): identifies a process uniquely within one `boot`."""


def _stat(pid: int) -> list[str] | None:
    """Returns the fields of /proc/<pid>/stat after the command name: [0] is the state, [19] the start time."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


@cache
def boot() -> str:
    """Identifies what pids here are counted in: this boot of the host, and the container; '' where that is not
    available."""
    try:
        began = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{began}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def start_ticks(pid: int) -> int:
    """Returns the clock ticks after boot at which the process started; 0 where that is not available."""
    fields = _stat(pid) if LINUX else None
    return int(fields[19]) if fields else 0


def alive(pid: int, ticks: int = 0) -> bool:
    """Whether this process still runs. A zombie does not: it no longer holds memory, files or devices."""
    if LINUX:
        fields = _stat(pid)
        return fields is not None and fields[0] not in "ZX" and ticks in (0, int(fields[19]))
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def kill(pid: int, ticks: int, number: int = signal.SIGKILL) -> bool:
    """Signals this process; returns False where it is already gone."""
    if not alive(pid, ticks):
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_gone(recorded: Iterable[Recorded], timeout: float) -> list[Recorded]:
    """Polls until none of the processes runs; returns those still alive after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    left = [one for one in recorded if alive(*one)]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [one for one in left if alive(*one)]
    return left


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Makes this process end (signal `number`) when its parent ends, for whatever reason; exits at once if it already
    has.

    Must be called early, by the process concerned, since the setting is not inherited. On Linux it takes effect when
    the parent *thread* that started this process ends. Elsewhere a thread polls getppid().
    """
    if LINUX:
        _prctl(_PR_SET_PDEATHSIG, number)
    else:
        _follow(parent, number)
    if os.getppid() != parent:
        os._exit(1)


def die_with_told_parent() -> None:
    """Makes this process end (SIGTERM) with the one that PARENT in its environment names, if that is set.

    For a program that its parent cannot make so before it begins: the thread of `die_with` does not survive an exec.
    The variable goes, so that no child takes it for its own.
    """
    if parent := os.environ.pop(PARENT, ""):
        _follow(int(parent), signal.SIGTERM)


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parent ends, so that they can be reaped (Linux only)."""
    if LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def threads() -> int:
    """Returns the number of threads of this process (1 where it is not available); fork is only safe with 1."""
    return len(list(Path("/proc/self/task").iterdir())) if LINUX else 1


def _prctl(option: int, value: int) -> None:
    if _LIBC is not None and _LIBC.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _follow(parent: int, number: int) -> None:
    """Sends this process the signal once `parent` is no longer its parent."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os.kill(os.getpid(), number)

    threading.Thread(target=watch, name="parent", daemon=True).start()
