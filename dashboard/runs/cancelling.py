"""Cancels several runs that have not ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.runs import services
from dashboard.runs.models import Run, State


def cancel_all(runs: Sequence[Run], user: Any) -> list[Run]:
    """Requests that all of them stop, and returns them in their order. The queued ones come first: the devices of one
    that stops at once must not start the next one. Raises PermissionDenied."""
    order = sorted(runs, key=lambda run: run.state != State.QUEUED)
    done = {run.pk: services.request_cancel(run=run, user=user) for run in order}
    return [done[run.pk] for run in runs]
