"""Who started runs lately, which decides whose turn it is (runs.waiting.turns); also of runs that were deleted since.

The first attempt of a run is its start; later ones are begun by the yard, for which nobody's turn is used up.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db.models import QuerySet

from dashboard.runs.models import Attempt, DeletedStart

RECENT = 500
"""How many of the newest starts are looked at."""


def newest_starts() -> list[tuple[int, datetime]]:
    """(owner, when the run was queued) of the RECENT newest starts, the newest first."""
    there = _firsts().order_by("-pk").values_list("pk", "run__owner", "run__queued_at")[:RECENT]
    deleted = DeletedStart.objects.order_by("-pk").values_list("pk", "owner", "queued_at")[:RECENT]
    newest = sorted([*there, *deleted], reverse=True)[:RECENT]
    return [(owner, queued_at) for _, owner, queued_at in newest]


def _firsts() -> QuerySet[Attempt]:
    return Attempt.objects.filter(number=1)


def keep_starts(runs: Sequence[int]) -> None:
    """Notes the starts of these runs, which are about to be deleted, inside the caller's transaction; of all that were
    noted, the RECENT newest stay."""
    rows = _firsts().filter(run__in=runs).order_by("-pk").values_list("pk", "run__owner", "run__queued_at")
    notes = [DeletedStart(attempt=pk, owner_id=owner, queued_at=queued_at) for pk, owner, queued_at in rows[:RECENT]]
    DeletedStart.objects.bulk_create(notes)
    beyond = DeletedStart.objects.order_by("-pk").values_list("pk", flat=True)[RECENT : RECENT + 1]
    for oldest in beyond:
        DeletedStart.objects.filter(pk__lte=oldest).delete()
