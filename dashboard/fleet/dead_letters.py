"""Records that the yard could not store, for admins: they tell of a fault of the yard. Once that is mended, they can be
stored again.

Only the controller writes what is measured: to store them again is a request that it finds (`control.restoring`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Count, Max, OuterRef, QuerySet, Subquery
from django.utils import timezone

from dashboard.fleet.services import require_staff
from dashboard.live.announce import announce
from dashboard.runs import states
from dashboard.runs.models import DeadLetter, Run
from parallel_core.analysis.quantities import plural_text

MOST = 8
"""The most runs that the page names, those with the newest records first."""
ASKED = "store_again"
DISCARDED = "records_discarded"
"""Kinds of the Events that say who had records of a run stored again, or discarded them."""
DECIDE = "store again or discard what was set aside"


@dataclass(frozen=True)
class SetAside:
    """A run of which `count` records were set aside, the newest one `at`, because of `error`; `asked` of them are to be
    stored again now."""

    run: Run
    count: int
    error: str
    at: datetime
    asked: int


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
    asked = _by_run(DeadLetter.objects.filter(store_asked_at__isnull=False))
    rows = [SetAside(run, run.letters, run.error, run.last_at, asked.get(run.pk, 0)) for run in found[:MOST]]
    return rows, max(0, found.count() - MOST) if len(rows) == MOST else 0


def store_again(*, letters: QuerySet[DeadLetter], user: Any) -> int:
    """Asks the controller to store these records again; returns how many. Raises PermissionDenied unless staff."""
    require_staff(user, DECIDE)
    with transaction.atomic():
        counts = _by_run(letters)
        letters.update(store_asked_at=timezone.now())
        _record(counts, ASKED, f"{user.get_username()} asked to store", "again that had been set aside.", user)
    announce(None, None, "fleet")
    return sum(counts.values())


def discard(*, letters: QuerySet[DeadLetter], user: Any) -> int:
    """Deletes these records for good; returns how many. Raises PermissionDenied unless staff."""
    require_staff(user, DECIDE)
    with transaction.atomic():
        counts = _by_run(letters)
        letters.delete()
        _record(counts, DISCARDED, f"{user.get_username()} discarded", "that had been set aside.", user)
    announce(None, None, "fleet")
    return sum(counts.values())


def _by_run(letters: QuerySet[DeadLetter]) -> dict[int, int]:
    """Run -> how many of these records are of it."""
    return dict(letters.order_by().values_list("attempt__run").annotate(count=Count("pk")))


def _record(counts: Mapping[int, int], kind: str, begin: str, end: str, user: Any) -> None:
    """Writes an Event for each run: `begin`, the number of its records, `end`."""
    runs = Run.objects.defer("summary", "spec").in_bulk(counts)
    told = [(run, f"{begin} {plural_text(counts[pk], 'record')} {end}") for pk, run in runs.items()]
    states.record_all(told, kind, actor=user)
