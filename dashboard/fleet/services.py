"""What staff do to workers. The controller reads `draining` before each placement."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied

from dashboard.fleet.models import Worker
from dashboard.live.announce import announce


def drain(*, worker: Worker, user: Any) -> Worker:
    """No new run is placed on the worker; the ones on it finish. Raises PermissionDenied unless staff."""
    return _set(worker, user, True)


def enable(*, worker: Worker, user: Any) -> Worker:
    """Takes a drained worker back into service. Raises PermissionDenied unless staff."""
    return _set(worker, user, False)


def _set(worker: Worker, user: Any, draining: bool) -> Worker:
    if not (user.is_active and user.is_staff):
        raise PermissionDenied("Only admins may drain or enable a worker.")
    worker.draining = draining
    worker.save(update_fields=("draining",))
    announce(None, None, "fleet")
    return worker
