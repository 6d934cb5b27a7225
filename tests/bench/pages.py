"""A server with many runs, and the addresses of its pages."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.db import models
from django.utils import timezone

from dashboard.runs.models import Attempt, Cursor, Event, LogChunk, MemoryRecord, RankInfo, Run, SeriesChunk, SpanChunk
from tests.dashboard import factory

PAGES = {
    "study": "/studies/{study}/",
    "study, a live turn": "/studies/{study}/changes.json",
    "studies": "/studies/",
    "runs list": "/runs/",
    "runs list, searched and sorted": "/runs/?q=PP&state=succeeded&sort=-step_time",
    "run page": "/runs/{run}/",
    "run page, metrics": "/runs/{run}/data/metrics.json",
    "compare (4 runs)": "/compare/?runs={runs}",
    "compare, a live turn": "/compare/changes.json?runs={runs}",
    "fleet": "/fleet/",
    "new run": "/runs/new/",
    "API: list of runs": "/api/v1/runs",
}
OF_ATTEMPTS: tuple[type[models.Model], ...] = (SeriesChunk, SpanChunk, MemoryRecord, RankInfo, Cursor, LogChunk)
SEED = """
import json, django; django.setup()
from tests.bench.pages import seed
print(json.dumps(seed({count})))
"""


def seed(count: int) -> dict[str, Any]:
    """Fills the database with `count` runs and all their records: one finished study, and copies of it.

    Returns the ids that PAGES needs.
    """
    owner = get_user_model().objects.filter(is_superuser=True).earliest("pk")
    first = factory.study(owner, "Starter")
    originals = list(first.runs.order_by("position"))
    while Run.objects.count() < count:
        _copy(first, originals)
    runs = ",".join(str(run.pk) for run in originals[:4])
    return {"study": first.pk, "run": originals[-1].pk, "runs": runs}


def _copy(study: Any, runs: list[Run]) -> None:
    study.pk, study.baseline = None, None
    study.save()
    copies = _add(Run, runs, study=study, queued_at=timezone.now())
    for old, new in zip(runs, copies, strict=True):
        _add(Event, list(Event.objects.filter(run=old)), run=new, attempt=None)
        for attempt in list(Attempt.objects.filter(run=old)):
            before = attempt.pk
            made = _add(Attempt, [attempt], run=new)[0]
            for model in OF_ATTEMPTS:
                _add(model, list(model._default_manager.filter(attempt=before)), attempt=made)
    study.baseline = copies[0]
    study.save(update_fields=("baseline",))


def _add(model: Any, rows: list[Any], **changed: Any) -> list[Any]:
    """Inserts copies of the rows with the given fields changed."""
    names = [field.attname for field in model._meta.concrete_fields if not field.primary_key]
    copies = [model(**{name: getattr(row, name) for name in names} | {}) for row in rows]
    for copy in copies:
        for name, value in changed.items():
            setattr(copy, name, value)
    return list(model.objects.bulk_create(copies))
