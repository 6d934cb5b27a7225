"""Gives the space of deleted runs in the embedded database back to the disk: SQLite alone never shrinks its file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

LEAST_FREE = 256 << 20
"""Fewest free bytes in the file for which a start is held up."""
LEAST_SHARE = 0.25
"""Smallest part of the file that is free: what is kept is rewritten, which takes in proportion to it."""
MOST_KEPT = 4 << 30
"""Most bytes that a start rewrites, for which it takes some ten seconds; of a larger file it only says how to."""
COPIES = 2
"""Room that VACUUM needs on the disk, in sizes of what is kept: a temporary copy, and the write-ahead log
(https://sqlite.org/lang_vacuum.html)."""


def compact(database: Any) -> None:
    """Rewrites the database of a connection if much of its file is free, what is kept is not too much to wait for and
    the disk has room for that; says so.

    Does nothing on PostgreSQL, which uses the space again. A failure, as while another process writes or where a page
    is damaged, changes nothing.
    """
    from parallel_core.analysis.quantities import bytes_text

    if database.vendor != "sqlite" or database.is_in_memory_db():
        return
    kept, free = sizes(database)
    if free < max(LEAST_FREE, LEAST_SHARE * (kept + free)) or _room(database) < COPIES * kept:
        return
    if kept > MOST_KEPT:
        print(
            f"{bytes_text(free)} of the database are free and used next. To give them back to the disk, stop the yard "
            f"and run ./run compact, which rewrites the other {bytes_text(kept)}.",
            flush=True,
        )
        return
    print(f"The database gives {bytes_text(free)} of deleted runs back to the disk: a moment.", flush=True)
    if why := _rewrite(database):
        print(f"It could not: {why}. The next start tries again.", flush=True)


def compact_now(database: Any) -> str:
    """Finishes the deletion of runs and rewrites the database of the default connection because somebody asked for it,
    however large it is; returns what that gave.

    Raises SystemExit with why not.
    """
    from dashboard.control.tidying import finish_deletions
    from parallel_core.analysis.quantities import bytes_text

    if database.vendor != "sqlite":
        raise SystemExit("This yard's database is PostgreSQL, which uses free space again; VACUUM FULL returns it.")
    if why := finish_deletions(database):
        print(f"Not all of what was measured of deleted runs could be deleted: {why}.", flush=True)
    kept, free = sizes(database)
    if (room := _room(database)) < COPIES * kept:
        needs = f"Rewriting {bytes_text(kept)} needs up to {bytes_text(COPIES * kept)} on the disk"
        raise SystemExit(f"{needs}, and {bytes_text(room)} are left there.")
    print(f"Rewriting {bytes_text(kept)}, without {bytes_text(free)} that are free ...", flush=True)
    if why := _rewrite(database):
        raise SystemExit(f"It could not: {why}. Nothing has changed.")
    return f"The database now takes {bytes_text(sum(sizes(database)))}."


def _room(database: Any) -> int:
    """Bytes that are left on the disk of an SQLite database."""
    return shutil.disk_usage(Path(database.settings_dict["NAME"]).parent).free


def _rewrite(database: Any) -> str:
    """Rewrites an SQLite database without what is free; returns why it could not, '' if it did."""
    from django.db import DatabaseError

    try:
        with database.cursor() as cursor:
            cursor.execute("VACUUM")
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except DatabaseError as error:
        return str(error)
    return ""


def sizes(database: Any) -> tuple[int, int]:
    """Bytes of an SQLite database that are in use, and that are free."""
    with database.cursor() as cursor:
        size, pages, free = (
            cursor.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
        )
    return size * (pages - free), size * free


if __name__ == "__main__":
    import django
    from django.db import DatabaseError, connection

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
    django.setup()
    try:
        print(compact_now(connection), flush=True)
    except DatabaseError as error:  # such as a file that is no database
        raise SystemExit(f"It could not: {error}. Nothing has changed.") from None
