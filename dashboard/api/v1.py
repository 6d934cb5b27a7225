"""The NinjaAPI object with its routers, and exception handlers that answer every failure in the same JSON shape."""

from __future__ import annotations

import json
import logging
from functools import cache
from typing import Any

from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError
from ninja.parser import Parser

from dashboard.api import corpora, fleet, links, measured, runs, studies, traces
from dashboard.api.auth import READ
from dashboard.errors import json_error, server_error
from dashboard.runs.services import Invalid
from parallel_core import json_text, rules
from parallel_core.spec import describe

log = logging.getLogger(__name__)
OF_NINJA = {
    "Unauthorized": "Sign in, or send a bearer token.",
    "Cannot parse request body": "The body is no JSON; send an object with named fields.",
}
"""Ninja's own error messages -> what we say instead."""
MOST_FIELDS = 50
"""The most field errors that one response lists."""


class _Parser(Parser):
    def parse_body(self, request: HttpRequest) -> Any:
        return json_text.read(request.body)


# No docs page: its scripts are inline, which our content security policy forbids.
api = NinjaAPI(
    title="Trainyard",
    version="1",
    description="Submit, follow, cancel and delete training runs. Sign in with a bearer token (/accounts/tokens/).",
    auth=READ,  # of an operation that says nothing else
    docs_url=None,
    openapi_url=None,  # below, as ninja's own is open to anybody and made anew for each request
    urls_namespace="api:v1",
    parser=_Parser(),
)
api.add_router("/runs", runs.router)
api.add_router("/runs", measured.router)
api.add_router("/corpora", corpora.router)
api.add_router("/traces", traces.router)
api.add_router("/links", links.router)
api.add_router("/studies", studies.router)
api.add_router("/workers", fleet.router)
api.add_router("/blobs", corpora.blobs)


@cache
def schema() -> dict[str, Any]:
    """The OpenAPI document, made once a process. It is shared: not to be changed."""
    return api.get_openapi_schema()


@cache
def _schema_text() -> bytes:
    return json.dumps(schema()).encode()


@api.get("/openapi.json", auth=READ, include_in_schema=False, url_name="openapi-json")
def openapi(request: HttpRequest) -> HttpResponse:
    return HttpResponse(_schema_text(), content_type="application/json")


@api.exception_handler(Invalid)
def invalid(request: HttpRequest, error: Invalid) -> HttpResponse:
    kept = "The request does not fit" if request.method == "GET" else "Nothing was queued or kept"
    return json_error(422, f"{kept}; see the fields.", error.field_errors)


@api.exception_handler(ValidationError)
def malformed(request: HttpRequest, error: ValidationError) -> HttpResponse:
    fields: dict[str, str] = {}
    for item in error.errors[:MOST_FIELDS]:
        say = describe if "spec" in item["loc"][:-1] else rules.describe
        before, place = _split(_place(item["loc"]))
        field, message = say(item, place)
        whole = not place and field == "spec"  # which the spec as a whole is called
        fields.setdefault(".".join(filter(None, (before, "" if before and whole else field))), message)
    shown = f" {MOST_FIELDS} of {len(error.errors)} are shown." if len(error.errors) > MOST_FIELDS else ""
    return json_error(422, f"The request does not fit; see the fields.{shown}", fields)


def _split(place: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Returns where a spec of several is, as `runs.1.spec` ('' of anything else), and the location within it."""
    if "spec" not in place[1:]:
        return "", place
    at = place.index("spec", 1) + 1
    return ".".join(map(str, place[:at])), place[at:]


def _place(loc: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the location without ninja's 'body', its parameter's name and 'spec', so that forms and API name fields
    alike."""
    rest = loc[2:] if loc[:1] == ("body",) else loc[1:]
    return (rest[1:] if rest[:1] == ("spec",) and len(rest) > 1 else rest) or ("body",)


@api.exception_handler(PermissionDenied)
def denied(request: HttpRequest, error: PermissionDenied) -> HttpResponse:
    return json_error(403, str(error) or "Your account may not do this.")


@api.exception_handler(Http404)
def missing(request: HttpRequest, error: Http404) -> HttpResponse:
    return json_error(404, "There is nothing by this name here.")


@api.exception_handler(RequestDataTooBig)
def too_large(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    return json_error(413, "The request is larger than this yard takes.")


@api.exception_handler(BadRequest)
@api.exception_handler(MultiPartParserError)
@api.exception_handler(SuspiciousOperation)
@api.exception_handler(UnreadablePostError)
def unreadable(request: HttpRequest, error: Exception) -> HttpResponse:
    """Answers 400, as Django does for pages; without this, the handler for Exception below would turn it into a 500."""
    return json_error(400, f"The request could not be read: {error}")


@api.exception_handler(HttpError)
def refused(request: HttpRequest, error: HttpError) -> HttpResponse:
    if isinstance(error.__cause__, json_text.NamedTwice):
        return json_error(400, f"The body cannot be read: {error.__cause__}.")
    if isinstance(error.__cause__, RecursionError):
        return json_error(400, "The body cannot be read: its values are nested too deeply.")
    return json_error(error.status_code, OF_NINJA.get(str(error), str(error)))


@api.exception_handler(Exception)
def broken(request: HttpRequest, error: Exception) -> HttpResponse:
    log.error("API request %s %s failed", request.method, request.path, exc_info=error)
    return server_error(request)
