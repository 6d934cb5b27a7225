"""The analyst: does the work that takes too long for a request. Each kind of work is a lane; lanes advance in turns."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from django.db import InterfaceError, OperationalError

from dashboard.control.changes import Changes
from dashboard.control.lock import lock_of_database

log = logging.getLogger(__name__)
POLL_S = 0.2
LOOK_EVERY_S = 2.0
"""Interval in seconds of looking for work while nobody writes to the database, when there is hardly any."""

Work = Iterator[None]
"""A piece of work, done in small steps; closing the iterator ends the process that does it."""


@dataclass
class Lane:
    """One kind of work. `recover` puts back what another analyst or an error left undone. `take` claims the oldest
    piece of work (None if there is none), and marks as failed what was put back too often."""

    recover: Callable[[], None]
    take: Callable[[], Work | None]
    work: Work | None = field(default=None, init=False)

    def move(self) -> bool:
        """Does one step of its work; False if there is none."""
        if self.work is None:
            self.work = self.take()
        if self.work is None:
            return False
        try:
            next(self.work)
        except StopIteration:
            self.work = None
        except (OperationalError, InterfaceError):
            raise  # the database is unreachable, for every lane
        except Exception:
            log.exception("a piece of work failed; it is put back, and tried again a few times")
            self.drop()
            self.recover()
        return True

    def drop(self) -> None:
        """Ends its work, unfinished."""
        work, self.work = self.work, None
        if work is not None and hasattr(work, "close"):
            work.close()


class Analyst:
    """The analyst of one process. Only one at a time works; others wait for the database's lock."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._stopping = threading.Event()
        self._changes = Changes()
        self._looked_at = float("-inf")

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        """Works until `stop`. The next analyst puts back what is then unfinished."""
        lock, mine = lock_of_database("analyst"), False
        try:
            while not self._stopping.is_set():
                mine = self._turn(mine) if lock.hold() else self._drop()
        finally:
            self._drop()
            lock.release()

    def _turn(self, mine: bool) -> bool:
        if not mine:
            for lane in self._lanes:
                lane.recover()
        moved = [lane.move() for lane in self._lanes] if self._may_have_work() else []
        if not any(moved):
            self._stopping.wait(POLL_S)
        return True

    def _may_have_work(self) -> bool:
        now, changed = time.monotonic(), self._changes.any()
        if not changed and now - self._looked_at < LOOK_EVERY_S and all(lane.work is None for lane in self._lanes):
            return False
        self._looked_at = now
        return True

    def _drop(self) -> bool:
        """Drops all work, as another analyst has the lock and recovers it. Returns False: the lock is not held."""
        for lane in self._lanes:
            lane.drop()
        self._stopping.wait(POLL_S)
        return False
