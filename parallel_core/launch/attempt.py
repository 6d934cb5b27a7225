"""The ranks of one attempt on this host, as the fork server manages them: which are alive, and pending signals."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field

from parallel_core.launch import StartCommand

DUMP_S = 0.5
"""Seconds that a rank gets to write its stacks: with both signals pending, TERM would end it before the dump."""


@dataclass
class Attempt:
    """The ranks of one attempt. `codes` are set as ranks are reaped; `term_at` and `kill_at`: when pending signals are
    due (CLOCK_MONOTONIC seconds)."""

    command: StartCommand
    pids: dict[int, int] = field(default_factory=dict)  # pid -> rank
    codes: dict[int, int] = field(default_factory=dict)  # rank -> exit code
    stopping: bool = False
    term_at: float | None = None
    kill_at: float | None = None
    dumped_at: float = float("-inf")

    @property
    def number(self) -> int:
        return self.command["attempt"]

    def living(self) -> list[int]:
        """Returns the pids of the ranks that have not been reaped."""
        return [pid for pid, rank in self.pids.items() if rank not in self.codes]

    def signal(self, number: int) -> None:
        """Signals every living rank. As we are its parent and have not reaped it, its pid cannot have been reused."""
        for pid in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def dump(self) -> None:
        """Makes each rank write its stacks to its log."""
        self.dumped_at = time.monotonic()
        self.signal(signal.SIGUSR1)

    def stop(self, grace: float) -> None:
        """Sends TERM now (after a dump: once that is written), KILL `grace` seconds later.

        A second stop can only bring the KILL forward.
        """
        now = time.monotonic()
        begin = max(now, self.dumped_at + DUMP_S)
        if not self.stopping:
            self.stopping, self.term_at = True, begin
        self.kill_at = min(begin + grace, self.kill_at or float("inf"))
        self.act()

    def kill(self) -> None:
        """Sends KILL now, without TERM: nothing is saved, and ranks on other hosts are not notified."""
        self.stopping, self.term_at, self.kill_at = True, None, time.monotonic()
        self.act()

    def act(self) -> None:
        """Sends the signals that are due."""
        now = time.monotonic()
        if self.term_at is not None and now >= self.term_at:
            self.term_at = None
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)  # a stopped rank would not see the TERM
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = None
            self.signal(signal.SIGKILL)

    def gone(self) -> bool:
        """Whether no rank, and no process that one left in its session, exists any more."""
        return not self.living() and not any(map(_group_exists, self.pids))

    def patience(self) -> float:
        """Returns the seconds until `act` has to be called; short once all ranks have ended, to check for processes
        left by them.
        """
        if not self.living():
            return 0.05
        due = min(at for at in (self.term_at, self.kill_at, float("inf")) if at is not None)
        return max(0.0, due - time.monotonic())


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
