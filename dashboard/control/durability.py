"""Makes what was committed to SQLite survive a loss of power.

With `synchronous=NORMAL`, SQLite writes commits to its write-ahead log but syncs that file only at a checkpoint, which
may be minutes later. PostgreSQL syncs every commit itself.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from django.db import connection


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
