"""URLs of the API. Its views answer requests that are not signed in with 401 as JSON instead of a redirect."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.urls import URLPattern, URLResolver, path, re_path
from django.views.decorators.csrf import csrf_exempt

from dashboard.api import parameters, reference
from dashboard.api.v1 import api
from dashboard.api.waiting import patient
from dashboard.errors import json_error

View = Callable[..., HttpResponseBase]
OF_ONE_RUN = ("get_run", "edit_run", "delete_run")
"""Names of the address of one run, one for each method: all have the same view."""


def authenticates_itself(view: View) -> View:
    """Wraps an API view: lets it authenticate requests itself, without login and CSRF middleware, makes 405 a JSON
    error, and refuses query parameters that a readable address does not have (`auth.require_member` those of
    others)."""

    @wraps(view, updated=())
    def entered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        if request.method == "GET" and response.status_code < 300 and (wrong := parameters.unknown(request)):
            return json_error(422, "The request does not fit; see the fields.", wrong)
        if response.status_code != 405:
            return response
        refused = json_error(405, f"{request.method} is not possible here; try {response.headers['Allow']}.")
        refused.headers["Allow"] = response.headers["Allow"]
        return refused

    entered.login_required = False  # type: ignore[attr-defined]
    return csrf_exempt(entered)


def nowhere(request: HttpRequest, rest: str = "") -> HttpResponseBase:
    """Answers any other address under /api/ with 404 as JSON."""
    return json_error(404, "The API has no such address; /api/ lists those that it has.")


def _patterns() -> list[URLPattern | URLResolver]:
    patterns = api.urls[0]
    for pattern in patterns:
        if isinstance(pattern, URLPattern):
            view = authenticates_itself(pattern.callback)
            pattern.callback = patient(view) if pattern.name in OF_ONE_RUN else view
    return patterns


app_name = "api"
urlpatterns: list[URLPattern | URLResolver] = [
    path("", reference.page, name="reference"),
    path("v1/", (_patterns(), "ninja", "v1")),
    re_path(r"^(?P<rest>.*)$", authenticates_itself(nowhere)),
]
