"""Processes of this host, by pid *and* start time, so that a reused pid is never mistaken for the process it was.

Nothing here imports torch. On Linux /proc is read; elsewhere `ps` is not worth its time on these paths, and a pid that
answers signal 0 counts as alive (start_ticks is 0 there).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

LINUX = sys.platform.startswith("linux")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

Recorded = tuple[int, int]
"""(pid, start_ticks): what names one process for ever on one boot of the host."""


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat behind the command name: [0] is the state, [19] the start time."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def start_ticks(pid: int) -> int:
    """Clock ticks after boot at which the process began; 0 where that cannot be told."""
    fields = _stat(pid) if LINUX else None
    return int(fields[19]) if fields else 0


def alive(pid: int, ticks: int = 0) -> bool:
    """Whether that very process still runs. A zombie does not: it holds no memory, file or device any more."""
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
    """Signal that very process; False where it is gone already."""
    if not alive(pid, ticks):
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_gone(recorded: Iterable[Recorded], timeout: float) -> list[Recorded]:
    """Poll until none of the recorded processes runs; what is still alive after `timeout` seconds is returned."""
    deadline = time.monotonic() + timeout
    left = [one for one in recorded if alive(*one)]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [one for one in left if alive(*one)]
    return left


def die_with(parent: int) -> None:
    """End this process (SIGKILL) when its parent ends, however that happens; exits at once if it already has.

    To be called first of all, in the process concerned: the setting is not inherited. On Linux it fires when the
    parent *thread* that started us ends. Elsewhere a thread polls getppid().
    """
    if LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that they can be waited for (Linux only)."""
    if LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def threads() -> int:
    """Threads of this process; 1 is the only number at which fork is safe (always 1 where it cannot be told)."""
    return len(list(Path("/proc/self/task").iterdir())) if LINUX else 1


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
