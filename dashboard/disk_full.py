"""Whether an error says that the disk of the server is full: of a file, of SQLite, or of PostgreSQL."""

from __future__ import annotations

import errno
import sqlite3

from parallel_core.atomic_file import NO_SPACE

SQLSTATE = "53100"
"""disk_full, PostgreSQL's documentation, appendix A."""
FULL = "The disk of the server is full"
QUOTA = "The server may have no more of its disk: the quota of its user is used up"
SAID = (
    "{why}, so this was not kept. Whoever runs the server has to free some of it first, such as old checkpoints and "
    "logs. Then delete runs, traces and texts that nobody needs: what they took is used again."
)


def why_full(error: BaseException | None) -> str:
    """What an error of `is_disk_full` says of the disk: FULL or QUOTA."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.EDQUOT:
            return QUOTA
        error = error.__cause__
    return FULL


def is_disk_full(error: BaseException | None) -> bool:
    """Whether `error`, or what it was raised from (Django's errors are raised from the driver's), means a full disk."""
    while error is not None:
        of_file = isinstance(error, OSError) and error.errno in NO_SPACE
        of_sqlite = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        if of_file or of_sqlite or getattr(error, "sqlstate", None) == SQLSTATE:
            return True
        error = error.__cause__
    return False
