"""Detects whether anything was written to the database since the last check, more cheaply than a query for rows.

SQLite counts the commits of other connections (`PRAGMA data_version`) and the rows that a connection itself has
changed. PostgreSQL returns how far its write-ahead log has been written, by any connection: a commit may show there a
moment before its rows are visible, and what others commit while a connection writes is ignored with its own. So callers
ask right before they write, skip only what they wrote, and also look now and then without a detected change.
"""

from __future__ import annotations

from django.db import connection

_QUESTIONS = {"sqlite": "PRAGMA data_version", "postgresql": "SELECT pg_current_wal_insert_lsn()"}


class Changes:
    """Detects writes to the database of this thread's connection. After a reconnect the counters begin anew: call
    `forget`."""

    def __init__(self) -> None:
        self._others: object = None
        self._own: object = None

    def any(self) -> bool:
        """Whether something was written since the last call; True the first time."""
        others = _told()
        changed = (others, _rows_changed()) != (self._others, self._own)
        self._others, self._own = others, _rows_changed()
        return changed

    def skip_own(self) -> None:
        """Ignores what this connection has written so far; on PostgreSQL also what others have written since the last
        call of `any`, which did not see that."""
        self._own = _rows_changed()
        if self._own is None and self._others is not None:
            self._others = _told()

    def forget(self) -> None:
        """Makes the next call of `any` return True."""
        self._others = None


def _told() -> object:
    with connection.cursor() as cursor:
        cursor.execute(_QUESTIONS[connection.vendor])
        return cursor.fetchone()


def _rows_changed() -> object:
    """Rows changed by this connection (SQLite); None where the driver has no such count."""
    return getattr(connection.connection, "total_changes", None)
