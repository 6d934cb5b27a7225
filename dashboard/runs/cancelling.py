"""Cancels several runs that have not ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from django.http import Http404

from dashboard.runs import services
from dashboard.runs.models import Run, State


def cancel_all(runs: Sequence[Run], user: Any) -> list[Run]:
    """Requests that all of them stop, and returns them in their order, without those that have been deleted since they
    were read. The queued ones come first: the devices of one that stops at once must not start the next one. Raises
    PermissionDenied."""
    done: dict[int, Run] = {}
    for run in sorted(runs, key=lambda run: run.state != State.QUEUED):
        with suppress(Http404):
            done[run.pk] = services.request_cancel(run=run, user=user)
    return [done[run.pk] for run in runs if run.pk in done]
