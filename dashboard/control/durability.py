"""Makes what was committed to SQLite survive a loss of power.

With `synchronous=NORMAL`, SQLite writes commits to its write-ahead log but syncs that file only at a checkpoint, which
may be minutes later. PostgreSQL syncs every commit itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from django.db import connection

from dashboard.control.dispatch import ControlMessage

log = logging.getLogger(__name__)


def sync_commits() -> None:
    """Returns when every commit so far, of any process, is on the disk. Raises OSError if the disk fails."""
    if connection.vendor != "sqlite":
        return
    # SQLite locks the database and its -shm file, never the log: closing this descriptor releases no lock.
    with contextlib.suppress(FileNotFoundError):  # nothing was written yet, or the database is in memory
        log = os.open(Path(f"{connection.settings_dict['NAME']}-wal"), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(log)
        finally:
            os.close(log)


class Durability:
    """Syncs commits, and holds back the orders of the kind `settled` until theirs are on the disk: a worker deletes
    what is settled."""

    def __init__(self) -> None:
        self._unsynced = False
        self._held: dict[tuple[str, int], ControlMessage] = {}

    def sync(self) -> None:
        """Syncs the commits. A disk that fails to may still take writes, so that costs no turn."""
        try:
            sync_commits()
        except OSError as error:
            if not self._unsynced:  # retried all the time: logged once
                log.warning("commits cannot be synced to the disk: %s", error)
            self._unsynced = True
            return
        if self._unsynced:
            log.warning("commits are synced to the disk again")
        self._unsynced = False

    def hold(self, settled: list[ControlMessage]) -> None:
        """Keeps orders, whose commits are done, for the next `release`."""
        if settled:
            self._held |= {(worker, entry["attempt"]): (worker, entry) for worker, entry in settled}
            self.sync()

    def release(self, send: Callable[[Iterable[ControlMessage]], None]) -> None:
        """Sends what is held if its commits are on the disk; keeps it if `send` fails."""
        if self._held and not self._unsynced:
            send(self._held.values())
            self._held.clear()
