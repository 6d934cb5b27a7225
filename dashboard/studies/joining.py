"""Adds a run to a study that exists, after its others."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Max

from dashboard.accounts.roles import may_change
from dashboard.deadlocks import again_after_deadlock
from dashboard.runs import services, submission
from dashboard.runs.models import Run
from dashboard.runs.waiting import queueing
from dashboard.studies.models import Study
from dashboard.studies.own_pages import OWN_PAGES

FIELD = "study"


def check(study: Study, user: Any) -> None:
    """Raises PermissionDenied if the user may not add runs to the study, Invalid if it takes none."""
    if not may_change(user, study):
        raise PermissionDenied("Only the study's owner and admins may add runs to it.")
    if study.kind in OWN_PAGES:
        raise services.Invalid({FIELD: f"Study {study.pk} compares something else than runs that train."})


@again_after_deadlock
def submit(
    *, owner: Any, study: Study, request: submission.Submission, also: services.Also = services.nothing_else
) -> Run:
    """Queues a run in the study, to be run with nothing beside it unless its runs go side by side; `also` gets it.

    Raises as `check` and `submission.submit` do, and Invalid if the study has been deleted meanwhile.
    """
    check(study, owner)
    prepared = submission.prepare(owner, request, study)
    with transaction.atomic():
        # two requests at once get two positions
        locked = Study.locked(study.pk)
        if locked is None:
            raise services.Invalid({FIELD: f"There is no study {study.pk}."})
        last = study.runs.aggregate(last=Max("position"))["last"]
        (run,) = prepared.runs
        run.position = 0 if last is None else last + 1
        queueing.follow(locked, prepared.runs, owner)
        locked.events.create(kind="added", text=f"{owner.get_username()} added “{run.name}”.", actor=owner)
        return services.write_one(prepared, also)
