"""What is deleted when nobody waits for it: what was measured of deleted runs, in small steps, and expired sessions."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from django.conf import settings
from django.db.models.functions import Length

from dashboard.runs.models import Attempt, OpenWaits
from dashboard.runs.stored import CHUNKS

SLICE_BYTES = 4 << 20
"""About the most that one transaction deletes: every other write waits for it."""
SLICE_ROWS = 500


def delete_slice() -> bool:
    """Deletes some of what was measured of runs that were deleted (runs.removal), in a transaction of its own; returns
    whether there was anything. Whatever ends it half-way, the next call goes on."""
    attempt = Attempt.every.filter(deleted=True).order_by("pk").values_list("pk", flat=True).first()
    if attempt is None:
        return False
    for kind, field in (*CHUNKS, (OpenWaits, "data")):
        rows = kind.objects.filter(attempt=attempt).order_by().values_list("pk", Length(field))[:SLICE_ROWS]
        if pks := _first(rows):
            kind.objects.filter(pk__in=pks).delete()
            return True
    Attempt.every.filter(pk=attempt).delete()
    return True


def _first(rows: Iterable[tuple[int, int | None]]) -> list[int]:
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
