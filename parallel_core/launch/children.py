"""The end of the fork server's children: reaped without leaving processes behind, and which of them is to blame."""

from __future__ import annotations

import contextlib
import os
import signal

from parallel_core import launch


def next_ended() -> tuple[int, int] | None:
    """Reaps a child that has ended and returns (pid, exit code); None where there is none.

    Processes that it left in its session are killed before it is reaped, while its pid, and so its process group,
    cannot be reused.
    """
    try:
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            pid, status = os.waitpid(-1, os.WNOHANG)
        else:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            pid = ended.si_pid if ended else 0
            if pid:
                _kill_group(pid)
                _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def blame(code: int) -> int:
    """Returns how unlikely it is that a rank with this exit code was the first to fail; 0 = most likely."""
    return {0: 3, launch.EXIT_STOPPED: 3, launch.EXIT_PEER: 2, -signal.SIGTERM: 2}.get(code, 0 if code < 0 else 1)
