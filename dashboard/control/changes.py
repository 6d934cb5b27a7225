"""Detects whether anything was written to the database since the last check, more cheaply than a query for rows.

SQLite counts the commits of other connections (`PRAGMA data_version`) and the rows that a connection itself has
changed. PostgreSQL returns how far its write-ahead log has been written, by any connection; a commit may show there a
moment before its rows are visible, so callers also look now and then without a detected change.
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
        with connection.cursor() as cursor:
            cursor.execute(_QUESTIONS[connection.vendor])
            others = cursor.fetchone()
        changed = (others, _rows_changed()) != (self._others, self._own)
        self._others, self._own = others, _rows_changed()
        return changed

    def skip_own(self) -> None:
        """Ignores what this connection has written so far; only SQLite distinguishes that from what others wrote."""
        self._own = _rows_changed()

    def forget(self) -> None:
        """Makes the next call of `any` return True."""
        self._others = None


def _rows_changed() -> object:
    """Rows changed by this connection (SQLite); None where the driver has no such count."""
    return getattr(connection.connection, "total_changes", None)
