"""Cancels several runs that have not ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from django.http import Http404

from dashboard.accounts.roles import may_change
from dashboard.runs import services
from dashboard.runs.models import ENDED, Run, State


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
            done[run.pk] = services.request_cancel(run=run, user=user)
    return [done[run.pk] for run in runs if run.pk in done]
