"""Keeps the yard's processes running: starts them, restarts a dead one with back-off, stops all of them in order."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from parallel_core.processes import LINUX, PARENT, die_with

BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
STEADY_S = 30.0
"""The back-off of a process that lived this long starts anew."""
LAST_BYTES = 4096
LOG_BYTES = 20 << 20
"""A longer log is begun anew; the end of the one before it, of this length, is kept."""


def die_with_parent() -> Callable[[], None] | None:
    """Returns a preexec_fn that makes a child end with this process, even after kill -9 (Linux); None elsewhere: see
    `told_parent`."""
    return partial(die_with, os.getpid(), signal.SIGTERM) if LINUX else None


def told_parent() -> dict[str, str]:
    """Variables for a child that calls `die_with_told_parent`, where there is no preexec_fn that does the same."""
    return {} if LINUX else {PARENT: str(os.getpid())}


def bound(log: Path) -> None:
    """Moves the last LOG_BYTES of a longer log to a second file, NAME.1, in place of what was there.

    The first file stays and is emptied, because a process may have it open for appending. It is emptied even if the
    disk has no space for the second one, which is then removed: a part of it would keep the disk full.
    """
    with contextlib.suppress(OSError):  # not there, or not ours
        if log.stat().st_size > LOG_BYTES:
            _keep_end(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)


def _keep_end(log: Path, kept: Path) -> None:
    """Copies the last LOG_BYTES of `log`, and what is appended meanwhile, to `kept`; if that fails there is none."""
    try:
        with log.open("rb") as source, kept.open("wb") as end:
            source.seek(-LOG_BYTES, os.SEEK_END)
            shutil.copyfileobj(source, end)
    except OSError:
        with contextlib.suppress(OSError):
            kept.unlink()


@dataclass
class Part:
    """One process of the yard. `stop_after` = seconds from TERM to KILL, `pass_fds` = open files that it gets under the
    same numbers, `variables` = what its environment has beside that of the yard."""

    name: str
    command: Sequence[str]
    log: Path
    stop_after: float = 3.0
    pass_fds: Sequence[int] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    failures: int = 0
    started: float = 0.0
    retry_at: float = 0.0
    on_exit: Callable[[str, int], None] | None = field(default=None, repr=False)
    on_failure: Callable[[str, Exception], None] | None = field(default=None, repr=False)
    """Called when it could not be started again, but not for the same reason twice in a row."""
    refusal: str = ""

    def start(self, env: dict[str, str], cwd: Path) -> None:
        """Raises OSError or SubprocessError if the host has no process, memory or disk space left for it."""
        # Its own session, so that Ctrl-C in the terminal reaches only the yard, which then stops the parts in order.
        self.log.parent.mkdir(parents=True, exist_ok=True)
        bound(self.log)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env={**env, **told_parent(), **self.variables},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=self.pass_fds,
                preexec_fn=die_with_parent(),
            )
        self.started = time.monotonic()

    def watch(self, env: dict[str, str], cwd: Path) -> None:
        """Checks the process and its log once, and starts a dead one again when its back-off is over; if it cannot be
        started now, it is tried again as if it had died."""
        now = time.monotonic()
        if self.process is not None and (code := self.process.poll()) is not None:
            self.process = None
            self._back_off(0 if now - self.started > STEADY_S else self.failures + 1)
            if self.on_exit:
                self.on_exit(self.name, code)
        if self.process is None and now >= self.retry_at:
            self._start_again(env, cwd)
        bound(self.log)

    def _back_off(self, failures: int) -> None:
        self.failures = failures
        self.retry_at = time.monotonic() + BACKOFF_S[min(failures, len(BACKOFF_S) - 1)]

    def _start_again(self, env: dict[str, str], cwd: Path) -> None:
        try:
            self.start(env, cwd)
        except (OSError, subprocess.SubprocessError) as error:
            self._back_off(self.failures + 1)
            if self.on_failure and str(error) != self.refusal:
                self.on_failure(self.name, error)
            self.refusal = str(error)
        else:
            self.refusal = ""

    def terminate(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def wait_or_kill(self, deadline: float) -> None:
        """Waits for the end until `deadline` (monotonic seconds), then kills the whole session of the part."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def last_line(log: Path) -> str:
    """The last line that is not blank, at most 300 characters of it; '' if there is none, or no such file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
            said = file.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1].strip()[-300:] if lines else ""


def stop_in_order(waves: Sequence[Sequence[Part]]) -> None:
    """Stops one wave after another: processes that still have something to report stop before those that listen."""
    for wave in waves:
        deadline = time.monotonic() + max((part.stop_after for part in wave), default=0.0)
        for part in wave:
            part.terminate()
        for part in wave:
            part.wait_or_kill(deadline)
