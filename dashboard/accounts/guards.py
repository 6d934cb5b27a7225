"""Decorators that say who may call a view: a role, or also a script. The sentence that they raise PermissionDenied with
is shown on the 403 page."""

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


def token_may_read(view: View) -> View:
    """Marks a view that only reads, such as the download of a file: a GET with a token that may read needs no session
    (see `accounts.middleware.SignedInMiddleware`). The outermost decorator of the view."""
    view.token_may_read = True  # type: ignore[attr-defined]
    return view
