"""Changes to workers that staff may make.

The controller reads `draining` before each placement. A removed worker that sends another heartbeat is added again, as
a new one.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404

from dashboard.deadlocks import again_after_deadlock
from dashboard.fleet import selectors
from dashboard.fleet.models import Worker
from dashboard.live.announce import announce


def drain(*, worker: Worker, user: Any) -> Worker:
    """Stops placing new runs on the worker; those on it finish. Raises PermissionDenied unless staff, and
    Http404 if it has been removed since it was read."""
    return _set(worker, user, True)


def enable(*, worker: Worker, user: Any) -> Worker:
    """Takes a drained worker back into service. Raises as `drain`."""
    return _set(worker, user, False)


@again_after_deadlock
def remove(*, worker: Worker, user: Any) -> None:
    """Deletes a worker that is gone, with the profiles measured on it; its runs stay and keep its name.

    Raises PermissionDenied unless staff, CannotRemoveWorker if it cannot be removed now.
    """
    require_staff(user)
    with transaction.atomic():
        if why := selectors.stays(worker):
            raise CannotRemoveWorker(why)
        Worker.objects.filter(pk=worker.pk).delete()
    announce(None, None, "fleet")


class CannotRemoveWorker(ValueError):
    """A worker cannot be removed now; the message says why, and when it can be."""


def require_staff(user: Any, what: str = "drain, enable or remove a worker") -> None:
    """Raises PermissionDenied, with a sentence that says who may do `what`, unless the user is active staff."""
    if not (user.is_active and user.is_staff):
        raise PermissionDenied(f"Only admins may {what}.")


def _set(worker: Worker, user: Any, draining: bool) -> Worker:
    require_staff(user)
    worker.draining = draining
    if not Worker.objects.filter(pk=worker.pk).update(draining=draining):
        raise Http404(f"{worker.name} was removed")
    announce(None, None, "fleet")
    return worker
