"""Decorators that restrict a view to a role. The sentence they raise PermissionDenied with is shown on the 403 page."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase

from dashboard.accounts.roles import may_submit

View = TypeVar("View", bound=Callable[..., HttpResponseBase])

MAY_NOT_SUBMIT = "Your account is a viewer: it may look at everything but not start or change runs."


def member_required(view: View) -> View:
    """Lets only members and admins call the view; raises PermissionDenied for anyone else."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not may_submit(request.user):
            raise PermissionDenied(MAY_NOT_SUBMIT)
        return view(request, *args, **kwargs)

    return guarded  # type: ignore[return-value]
