"""Cancels runs that have not ended: one, or several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils import timezone

from dashboard.accounts.roles import may_change
from dashboard.deadlocks import again_after_deadlock
from dashboard.runs import states
from dashboard.runs.models import ACTIVE, ENDED, Run, State


@again_after_deadlock
def request_cancel(*, run: Run, user: Any) -> Run:
    """Cancels a queued run at once; asks the controller to stop an active one. An ended run is left as it is.

    The request stays in the row until the run has ended, so that it is not lost while no controller runs. Raises
    PermissionDenied, and Http404 if the run has been deleted since it was read.
    """
    if not may_change(user, run):
        raise PermissionDenied("Only the run's owner and admins may cancel it.")
    with transaction.atomic():
        run = get_object_or_404(Run.objects.select_for_update(), pk=run.pk)
        if run.state in ACTIVE and run.cancel_requested_at is None:
            run.cancel_requested_at = timezone.now()
            run.save(update_fields=("cancel_requested_at",))
            states.record(run, "cancel_requested", f"{user.get_username()} asked to cancel it.", actor=user)
        elif run.state == State.QUEUED:
            run = states.cancel_queued(run, actor=user)
    return run


def any_left(runs: Iterable[Run], user: Any) -> bool:
    """Whether the user may cancel any of them that has not been cancelled: in a study, those of others are not the
    owner's to cancel."""
    return any(run.state not in {*ENDED, State.CANCELLING} and may_change(user, run) for run in runs)


def cancel_all(runs: Sequence[Run], user: Any) -> list[Run]:
    """Requests that all of them stop, and returns them in their order, without those that have been deleted since they
    were read. The queued ones come first: the devices of one that stops at once must not start the next one. Raises
    PermissionDenied."""
    done: dict[int, Run] = {}
    for run in sorted(runs, key=lambda run: run.state != State.QUEUED):
        with suppress(Http404):
            done[run.pk] = request_cancel(run=run, user=user)
    return [done[run.pk] for run in runs if run.pk in done]
