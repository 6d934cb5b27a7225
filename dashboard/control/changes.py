"""Whether anything was written to the database since one last asked: the answer costs less than any query for rows.

SQLite counts the commits of others (`PRAGMA data_version`) and the rows that a connection itself has changed.
PostgreSQL tells how far its log has been written, by whomever; a commit may be seen a moment before its rows are, so
who asks looks now and then without being told.
"""

from __future__ import annotations

from django.db import connection

_QUESTIONS = {"sqlite": "PRAGMA data_version", "postgresql": "SELECT pg_current_wal_insert_lsn()"}


class Changes:
    """Of the database of this thread's connection. A new connection counts anew: `forget` what the old one said."""

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
        """What this connection has written so far is no news, where it can be told from what others wrote."""
        self._own = _rows_changed()

    def forget(self) -> None:
        self._others = None


def _rows_changed() -> object:
    """By this connection; what has no such count gives none."""
    return getattr(connection.connection, "total_changes", None)
