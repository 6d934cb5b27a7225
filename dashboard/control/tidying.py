"""What is deleted when nobody waits for it: what was measured of deleted runs, in small steps, and expired sessions.

The controller does so bit by bit. Before the schema changes and before the file is rewritten (yard.prepare,
yard.compact) all that is left goes at once, in a database of the version that it has until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from django.apps.registry import Apps
from django.apps.registry import apps as installed
from django.conf import settings
from django.db import DatabaseError
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models.functions import Length

from dashboard.runs.models import Attempt, OpenWaits
from dashboard.runs.stored import CHUNKS

SLICE_BYTES = 4 << 20
"""About the most that one transaction deletes: every other write waits for it."""
SLICE_ROWS = 500
BEGAN = ("runs", "0025_deleted_attempts")
"""The migration from which on a database may hold anything of deleted runs."""


def delete_slice(apps: Apps = installed) -> bool:
    """Deletes some of what was measured of runs that were deleted (runs.removal), in a transaction of its own; returns
    whether there was anything. Whatever ends it half-way, the next call goes on. `apps` = the models to use."""
    attempts = _rows_of(apps, Attempt)
    attempt = attempts.filter(deleted=True).order_by("pk").values_list("pk", flat=True).first()
    if attempt is None:
        return False
    for kind, field in (*CHUNKS, (OpenWaits, "data")):
        every = _rows_of(apps, kind)
        rows = every.filter(attempt=attempt).order_by().values_list("pk", Length(field))[:SLICE_ROWS]
        if pks := a_slice(rows):
            every.filter(pk__in=pks).delete()
            return True
    attempts.filter(pk=attempt).delete()
    return True


def _rows_of(apps: Apps, kind: Any) -> Any:
    """The manager of all rows of a model, as `apps` knows it."""
    return apps.get_model(kind._meta.label)._base_manager


def finish_deletions(database: Any, told: Callable[[], None] = lambda: None) -> str:
    """Deletes all that is left of deleted runs, in the database of the default connection, whichever migrations it has;
    returns why it could not, '' if it did. Calls `told` after each slice."""
    if BEGAN not in MigrationRecorder(database).applied_migrations():
        return ""
    try:
        apps = _applied(MigrationLoader(database))
        while delete_slice(apps):
            told()
    except DatabaseError as error:
        return str(error)
    return ""


def _applied(loader: MigrationLoader) -> Apps:
    """The models as the migrations that are applied have left them: those of the code may have columns and tables that
    are still to come."""
    return loader.project_state([one for one in loader.graph.nodes if one in loader.applied_migrations]).apps


def a_slice(rows: Iterable[tuple[int, int | None]]) -> list[int]:
    """As many of the first rows, of (pk, bytes), as reach SLICE_BYTES."""
    pks, size = list[int](), 0
    for pk, own in rows:
        pks.append(pk)
        size += own or 0
        if size >= SLICE_BYTES:
            break
    return pks


def clear_sessions() -> None:
    """Deletes the sessions that have expired: Django itself keeps them for good."""
    import_module(settings.SESSION_ENGINE).SessionStore.clear_expired()
