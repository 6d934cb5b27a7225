"""The time by one clock, for what one process stamps and another judges: web and controller may be on two hosts.

It is that of the database, which both use: one in a file is of their own host, a PostgreSQL may be on a third one.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from django.db import connection
from django.utils import timezone

KEPT_S = 30.0
"""For how long it is taken for known by how much the clocks differ."""
_known = {"until": 0.0, "ahead": 0.0}
"""Until when, by CLOCK_MONOTONIC, and by how many seconds the clock of the database is ahead of this host's."""


def now() -> datetime:
    """The time by the clock of the database."""
    return timezone.now() + _difference()


def here(at: datetime) -> datetime:
    """The moment that is `at` by the clock of the database, by this host's: pages count ages by that."""
    return at - _difference()


def _difference() -> timedelta:
    """By how much the clock of the database is ahead of this host's."""
    if connection.vendor == "sqlite":
        return timedelta()
    if time.monotonic() > _known["until"]:
        _known.update(ahead=_ahead(), until=time.monotonic() + KEPT_S)
    return timedelta(seconds=_known["ahead"])


def _ahead() -> float:
    """Seconds by which the clock of the database is ahead; 0 if they may be the same."""
    before = time.time()
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXTRACT(EPOCH FROM clock_timestamp())")
        said = float(cursor.fetchone()[0])
    after = time.time()
    return 0.0 if before <= said <= after else said - (before + after) / 2
