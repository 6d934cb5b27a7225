"""Whether an error says that the disk of the server is full: of a file, of SQLite, or of PostgreSQL."""

from __future__ import annotations

import errno
import os
import sqlite3

from parallel_core.atomic_file import NO_SPACE

SQLSTATE = "53100"
"""disk_full, PostgreSQL's documentation, appendix A."""
OTHER_STATES = ("XX000", "58030")
"""internal_error and io_error: PostgreSQL has no code for a quota, whose words stand in the message alone."""
FULL = "The disk of the server is full"
QUOTA = "The server may have no more of its disk: the quota of its user is used up"
SAID = (
    "{why}, so this was not kept. Whoever runs the server has to free some of it first, such as old checkpoints and "
    "logs. Then delete runs, traces and texts that nobody needs: what they took is used again."
)


def why_full(error: BaseException | None) -> str:
    """What an error of `is_disk_full` says of the disk: FULL or QUOTA."""
    while error is not None:
        if (isinstance(error, OSError) and error.errno == errno.EDQUOT) or is_quota_of_postgres(error):
            return QUOTA
        error = error.__cause__
    return FULL


def is_quota_of_postgres(error: BaseException) -> bool:
    """Whether PostgreSQL says that its user may have no more of the disk, such as `could not extend file "base/5/1259":
    Disk quota exceeded`."""
    return getattr(error, "sqlstate", None) in OTHER_STATES and os.strerror(errno.EDQUOT) in str(error)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether `error`, or what it was raised from (Django's errors are raised from the driver's), means a full disk."""
    while error is not None:
        of_file = isinstance(error, OSError) and error.errno in NO_SPACE
        of_sqlite = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        of_postgres = getattr(error, "sqlstate", None) == SQLSTATE or is_quota_of_postgres(error)
        if of_file or of_sqlite or of_postgres:
            return True
        error = error.__cause__
    return False
