"""What staff do to workers. The controller reads `draining` before each placement; a worker that was removed and still
sends a heartbeat is there again with it, as a new one."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction

from dashboard.fleet import selectors
from dashboard.fleet.models import Worker
from dashboard.live.announce import announce


def drain(*, worker: Worker, user: Any) -> Worker:
    """No new run is placed on the worker; the ones on it finish. Raises PermissionDenied unless staff."""
    return _set(worker, user, True)


def enable(*, worker: Worker, user: Any) -> Worker:
    """Takes a drained worker back into service. Raises PermissionDenied unless staff."""
    return _set(worker, user, False)


def remove(*, worker: Worker, user: Any) -> None:
    """Takes a worker that is gone off the fleet, with the profiles timed on it; its runs stay, and keep its name.

    Raises PermissionDenied unless staff, Stays where it must stay for now.
    """
    _require_staff(user)
    with transaction.atomic():
        if why := selectors.stays(worker):
            raise Stays(why)
        worker.delete()
    announce(None, None, "fleet")


class Stays(ValueError):
    """Why a worker is not removed, and when it can be, as a sentence."""


def _require_staff(user: Any) -> None:
    if not (user.is_active and user.is_staff):
        raise PermissionDenied("Only admins may drain, enable or remove a worker.")


def _set(worker: Worker, user: Any, draining: bool) -> Worker:
    _require_staff(user)
    worker.draining = draining
    worker.save(update_fields=("draining",))
    announce(None, None, "fleet")
    return worker
