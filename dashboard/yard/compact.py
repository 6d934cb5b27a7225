"""Gives the space of deleted runs in the embedded database back to the disk: SQLite alone never shrinks its file."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

LEAST_FREE = 256 << 20
"""Fewest free bytes in the file for which a start is held up."""
LEAST_SHARE = 0.25
"""Smallest part of the file that is free: what is kept is rewritten, which takes in proportion to it."""
COPIES = 2
"""Room that VACUUM needs on the disk, in sizes of what is kept: a temporary copy, and the write-ahead log
(https://sqlite.org/lang_vacuum.html)."""


def compact(database: Any) -> None:
    """Rewrites the database of a connection if much of its file is free and the disk has room for that; says so.

    Does nothing on PostgreSQL, which uses the space again. A failure, as while another process writes or where a page
    is damaged, changes nothing.
    """
    from django.db import DatabaseError

    from parallel_core.analysis.quantities import bytes_text

    if database.vendor != "sqlite" or database.is_in_memory_db():
        return
    kept, free = sizes(database)
    room = shutil.disk_usage(Path(database.settings_dict["NAME"]).parent).free
    if free < max(LEAST_FREE, LEAST_SHARE * (kept + free)) or room < COPIES * kept:
        return
    print(f"The database gives {bytes_text(free)} of deleted runs back to the disk: a moment.", flush=True)
    try:
        with database.cursor() as cursor:
            cursor.execute("VACUUM")
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except DatabaseError as error:
        print(f"It could not: {error}. The next start tries again.", flush=True)


def sizes(database: Any) -> tuple[int, int]:
    """Bytes of an SQLite database that are in use, and that are free."""
    with database.cursor() as cursor:
        size, pages, free = (
            cursor.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
        )
    return size * (pages - free), size * free
