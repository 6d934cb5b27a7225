"""What the controller does at the end of its turns because nobody waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from dashboard.control.changes import Changes
from dashboard.control.guard import Guard
from dashboard.control.thinning import thin_old_runs, thin_slice
from dashboard.control.tidying import clear_sessions, delete_slice

SESSIONS_EVERY_S = 24 * 3600.0
OLD_RUNS_EVERY_S = 600.0
TIDYING_S = 0.05
"""Seconds of a turn after which nothing more is deleted."""
TIDY_AGAIN_S = 60.0
"""Seconds until it is tried again after it failed: it may fail each time."""
SLICES: dict[str, Callable[[], bool]] = {
    "delete what was measured of deleted runs": delete_slice,
    "drop what was traced of runs whose space is to be freed": thin_slice,
}
"""Deletions in small steps. Each returns whether there was anything to do."""


class Leisure:
    """`remains`: there may be something to delete; after each sweep that is so."""

    def __init__(self, guard: Guard, changes: Changes) -> None:
        self.remains = True
        self._guard, self._changes = guard, changes
        self._last: dict[str, float] = {}
        self._news = False

    def turn(self) -> bool:
        """Does what is due, for a moment; returns whether others had changed anything before that."""
        self._news = False
        self._do("clear expired sessions", SESSIONS_EVERY_S, clear_sessions)
        self._do("see which runs are old", OLD_RUNS_EVERY_S, thin_old_runs)
        if self.remains:
            left = [self._slices(what, one) for what, one in SLICES.items()]
            self.remains = any(left)
        return self._news

    def _slices(self, what: str, one: Callable[[], bool]) -> bool:
        """Deletes for some TIDYING_S; returns whether anything may be left."""
        left = [True]
        self._do(what, 0.0, partial(_some, one, left))
        return left[0]

    def _do(self, what: str, seconds: float, action: Callable[[], None]) -> None:
        """Does that every so many seconds; what it writes is no news. If it fails, even with the loss of the
        connection, the turns until TIDY_AGAIN_S later go without it."""
        now = time.monotonic()
        if now - self._last.get(what, float("-inf")) < seconds:
            return
        self._last[what] = now - seconds + TIDY_AGAIN_S
        self._news |= self._changes.any()
        if self._guard.run(what, action, can_wait=True):
            self._last[what] = now
        self._changes.skip_own()


def _some(one: Callable[[], bool], left: list[bool]) -> None:
    until = time.monotonic() + TIDYING_S
    while (found := one()) and time.monotonic() < until:
        pass
    left[0] = found
