"""Keeps the yard's processes running: starts them, restarts a dead one with back-off, stops all of them in order."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from parallel_core.processes import LINUX, die_with

BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)
STEADY_S = 30.0
"""The back-off of a process that lived this long starts anew."""
LAST_BYTES = 4096


def die_with_parent() -> Callable[[], None] | None:
    """Returns a preexec_fn that makes a child end with the yard, even after kill -9 (Linux); None elsewhere."""
    return partial(die_with, os.getpid(), signal.SIGTERM) if LINUX else None


@dataclass
class Part:
    """One process of the yard. `stop_after` = seconds from TERM to KILL."""

    name: str
    command: Sequence[str]
    log: Path
    stop_after: float = 3.0
    process: subprocess.Popen[bytes] | None = None
    failures: int = 0
    started: float = 0.0
    retry_at: float = 0.0
    on_exit: Callable[[str, int], None] | None = field(default=None, repr=False)

    def start(self, env: dict[str, str], cwd: Path) -> None:
        # Its own session, so that Ctrl-C in the terminal reaches only the yard, which then stops the parts in order.
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        self.started = time.monotonic()

    def watch(self, env: dict[str, str], cwd: Path) -> None:
        """Checks the process once, and starts a dead one again when its back-off is over."""
        now = time.monotonic()
        if self.process is not None and (code := self.process.poll()) is not None:
            self.process = None
            self.failures = 0 if now - self.started > STEADY_S else self.failures + 1
            self.retry_at = now + BACKOFF_S[min(self.failures, len(BACKOFF_S) - 1)]
            if self.on_exit:
                self.on_exit(self.name, code)
        if self.process is None and now >= self.retry_at:
            self.start(env, cwd)

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
