"""Authentication of API requests: a bearer token with a scope, or a browser's session (with CSRF on unsafe methods)."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from ninja.errors import HttpError
from ninja.security import HttpBearer
from ninja.security.apikey import APIKeyCookie
from ninja.utils import check_csrf

from dashboard.accounts.roles import may_submit
from dashboard.api.models import ApiToken, Scope
from dashboard.runs.services import Invalid

ENOUGH = {
    Scope.READ: {Scope.READ, Scope.SUBMIT},
    Scope.SUBMIT: {Scope.SUBMIT},
    Scope.WORKER: {Scope.WORKER},
}
"""Scope that an operation needs -> scopes of a token that satisfy it."""


class Bearer(HttpBearer):
    """`Authorization: Bearer ty_...`; sets request.user to the token's owner.

    Subclasses say which scope they need; the OpenAPI schema refers to them by class name.
    """

    needs: Scope

    def __call__(self, request: HttpRequest) -> Any:
        # An invalid Authorization header must not fall back to the session cookie of the same browser.
        if "Authorization" in request.headers and super().__call__(request) is None:
            raise HttpError(401, "This token is unknown, expired or revoked, or its user's account is not active.")
        return getattr(request, "api_token", None)

    def authenticate(self, request: HttpRequest, token: str) -> ApiToken | None:
        found = ApiToken.find(token)
        if found is None:
            return None
        if found.scope not in ENOUGH[self.needs]:
            raise HttpError(403, f"This token has the scope “{found.scope}”; this needs “{self.needs}”.")
        request.user = found.user
        request.api_token = found  # type: ignore[attr-defined]
        return found


class ReadToken(Bearer):
    needs = Scope.READ
    openapi_description = "A token that may read, or submit."


class SubmitToken(Bearer):
    needs = Scope.SUBMIT
    openapi_description = (
        "A token that may submit, and cancel and delete what is its owner's; an admin's, what is anybody's."
    )


class WorkerToken(Bearer):
    needs = Scope.WORKER
    openapi_description = "A worker's token."


class Session(APIKeyCookie):
    """The session cookie of a signed-in user. Raises HttpError 403 if the CSRF token is missing or wrong."""

    param_name: str = settings.SESSION_COOKIE_NAME

    def __call__(self, request: HttpRequest) -> Any:
        if not request.user.is_authenticated:
            return None
        if check_csrf(request):
            raise HttpError(403, "The CSRF token is missing or wrong: send it in the header X-CSRFToken.")
        return request.user

    def authenticate(self, request: HttpRequest, key: str | None) -> Any:
        return request.user


READ: list[Any] = [ReadToken(), Session()]
SUBMIT: list[Any] = [SubmitToken(), Session()]
WORKER: list[Any] = [WorkerToken()]


def require_member(request: HttpRequest) -> None:
    """Raises HttpError 403 for viewers: a token never allows more than its owner may do at the moment. Raises Invalid
    for query parameters that the address does not have and fields that its form does not take, before anything is
    changed."""
    from dashboard.api.parameters import unknown  # which imports all operations, and they this module

    if not may_submit(request.user):
        raise HttpError(403, "Your account is a viewer: it may not start or change runs.")
    if wrong := unknown(request):
        raise Invalid(wrong)
