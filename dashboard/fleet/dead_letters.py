"""Records that the yard could not store, for the Fleet page of admins: they tell of a fault of the yard."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Max, OuterRef, Subquery

from dashboard.runs.models import DeadLetter, Run

MOST = 8
"""The most runs that the page names, those with the newest records first."""


@dataclass(frozen=True)
class SetAside:
    """A run of which `count` records were set aside, the newest one `at`, because of `error`."""

    run: Run
    count: int
    error: str
    at: datetime


def set_aside() -> tuple[list[SetAside], int]:
    """Returns the runs with the newest of such records, and the number of those that are not named."""
    newest = DeadLetter.objects.filter(attempt__run=OuterRef("pk")).order_by("-pk")
    found = (
        Run.objects.filter(attempts__dead_letters__isnull=False)
        .defer("summary", "spec")
        .annotate(
            letters=Count("attempts__dead_letters"),
            newest=Max("attempts__dead_letters__pk"),
            error=Subquery(newest.values("error")[:1]),
            last_at=Subquery(newest.values("at")[:1]),
        )
        .order_by("-newest")
    )
    rows = [SetAside(run, run.letters, run.error, run.last_at) for run in found[:MOST]]
    return rows, max(0, found.count() - MOST) if len(rows) == MOST else 0
