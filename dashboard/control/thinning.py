"""Drops what was traced of runs that are thinned (runs.tracing.thinning), in small steps, and has old runs thinned."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Length
from django.utils import timezone

from dashboard.control.tidying import SLICE_ROWS, a_slice
from dashboard.runs.measured import ProfilePart
from dashboard.runs.models import ENDED, Run
from dashboard.runs.tracing.thinned import Thinned
from dashboard.runs.tracing.thinning import keep_numbers, spans_going

AT_ONCE = 50
"""How many runs that have become old are noted in one transaction."""


def thin_slice() -> bool:
    """Drops some of what was traced, in a transaction of its own; returns whether there was anything to do. Whatever
    ends it half-way, the next call goes on."""
    one = Thinned.objects.filter(done=False).select_related("run").order_by("id").first()
    if one is None:
        return False
    files = ProfilePart.objects.filter(attempt__run=one.run_id)
    going = [*spans_going(one), *([(files, "data")] if one.profiles else [])]
    for rows, field in going:
        sizes = rows.order_by("attempt", "step", "rank").values_list("pk", Length(field))[:SLICE_ROWS]
        if pks := a_slice(sizes):
            rows.model._base_manager.filter(pk__in=pks).delete()
            return True
    Thinned.objects.filter(pk=one.pk).update(done=True)
    return True


def thin_old_runs() -> None:
    """Has runs thinned that ended more than THIN_AFTER_DAYS ago; 0: none. Files of torch.profiler stay: somebody asked
    for each of them."""
    if not (days := settings.THIN_AFTER_DAYS):
        return
    old = Run.objects.filter(state__in=ENDED, ended_at__lt=timezone.now() - timedelta(days=days), thinned=None)
    with transaction.atomic():
        for run in old.select_for_update(of=("self",), skip_locked=True).order_by("pk")[:AT_ONCE]:
            keep_numbers(run, by=None, profiles=False)
