"""Deletes a study with all its runs."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction

from dashboard import deletions
from dashboard.accounts.roles import may_change
from dashboard.deadlocks import again_after_deadlock
from dashboard.runs import removal
from dashboard.runs.models import Run
from dashboard.runs.services import Invalid
from dashboard.studies.models import Study


def staying(study: Study, user: Any) -> list[tuple[Run, str]]:
    """The study's runs that `user` cannot delete yet, and why."""
    runs = list(study.runs.select_related("owner").order_by("position", "pk"))
    busy = removal.in_use(runs, user)
    return [(run, busy[run.pk]) for run in runs if run.pk in busy]


@again_after_deadlock
def delete(*, study: Study, user: Any) -> None:
    """Deletes a study with all its runs, also those that others added to it.

    Raises PermissionDenied unless the user may change the study, or Invalid({"study": why}) if a run cannot be deleted
    yet.
    """
    if not may_change(user, study):
        raise PermissionDenied("Only the study's owner and admins may delete it.")
    with transaction.atomic():
        # a run that joins meanwhile is there when the runs are looked at, or finds no study
        list(Study.objects.select_for_update().filter(pk=study.pk).values("pk"))
        runs = list(study.runs.select_for_update(of=("self",)).select_related("owner").order_by("pk"))
        for run, why in staying(study, user):
            raise Invalid({"study": f"“{run.name}”: {why}"})
        deletions.note(user, study, *runs)
        removal.forget(runs)
        Study.objects.filter(pk=study.pk).delete()
