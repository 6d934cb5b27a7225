"""Responses to refused requests, for people and scripts: an error page, or one JSON shape under /api/."""

from __future__ import annotations

import sys
from typing import Any

from django.core.exceptions import DisallowedHost, PermissionDenied, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.request import split_domain_port
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.log import log_response

from dashboard.disk_full import SAID, is_disk_full, why_full
from parallel_core.analysis.quantities import sentence_text

CODES = {
    400: "bad_request",
    401: "not_signed_in",
    403: "not_allowed",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "too_large",
    416: "range_not_satisfiable",
    422: "invalid",
    429: "too_many_requests",
    500: "internal_error",
    503: "unavailable",
}
RETRY_AFTER = 5
"""Seconds."""
DATABASE_AWAY = "The database does not answer; ask again in a moment."
MAY_BE_DONE = (
    "It may have been away only for the answer: where a request makes something, send the header Idempotency-Key, so "
    "that to ask again makes nothing twice."
)
MOST_OF_A_HOST = 200
"""Characters of a host name that are shown: names have at most 253, but a client may send anything."""


def envelope(status: int, message: str, fields: dict[str, str] | None = None) -> dict[str, Any]:
    """The body of every refused API request."""
    code = CODES.get(status, "error")
    said = {field: sentence_text(text) for field, text in (fields or {}).items()}
    return {"error": {"code": code, "message": sentence_text(message), "fields": said}}


def json_error(status: int, message: str, fields: dict[str, str] | None = None) -> JsonResponse:
    return JsonResponse(envelope(status, message, fields), status=status)


def page(request: HttpRequest, status: int, title: str, message: str, **more: Any) -> HttpResponse:
    """The error as a page, or as JSON under /api/. `more` is context for the page only."""
    if request.path.startswith("/api/"):
        return json_error(status, message)
    context = {"title": title, "message": sentence_text(message), "status": status, **more}
    return render(request, "error.html", context, status=status)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    if isinstance(exception, RequestDataTooBig):
        return too_large(request)
    if isinstance(exception, DisallowedHost):
        return unknown_host(request)
    return page(request, 400, "That request makes no sense", "Something in the address or the form could not be read.")


def unknown_host(request: HttpRequest) -> HttpResponse:
    """Answers a request for a host that is not in ALLOWED_HOSTS.

    Built without the request, because whatever asks it for its host raises again. Logs one line.
    """
    sent = request.META.get("HTTP_HOST", "")[:MOST_OF_A_HOST]
    host = split_domain_port(sent)[0] or sent
    message = (
        f"This yard does not serve the name {host!r}. Whoever runs it can add that name to the setting ALLOWED_HOSTS "
        "of the web process."
    )
    if request.path.startswith("/api/"):
        response: HttpResponse = json_error(400, message)
    else:
        response = HttpResponse(render_to_string("400.html", {"message": message}), status=400)
    _log_line(message, request, response)
    return response


def _log_line(message: str, request: HttpRequest, response: HttpResponse) -> None:
    """Logs one line instead of Django's traceback, which would say no more."""
    log_response("%s", " ".join(message.split()), response=response, request=request, level="warning")


def not_allowed(request: HttpRequest, exception: Exception) -> HttpResponse:
    said = str(exception) if isinstance(exception, PermissionDenied) else ""
    message = said or "Your account may not do this."
    return page(request, 403, "Not allowed", f"{message} An admin of this yard can change your role.")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return page(request, 404, "Not here", "There is nothing at this address. It may have been deleted, or mistyped.")


def wrong_method(request: HttpRequest, allowed: str) -> HttpResponse:
    """`allowed` = the methods that the address takes, as in the header Allow."""
    takes_forms = "POST" in allowed
    message = (
        "Only a button of a page sends something here." if takes_forms else "This page takes nothing; open it instead."
    )
    response = page(request, 405, "Not like this", message)
    response["Allow"] = allowed
    return response


def too_large(request: HttpRequest) -> HttpResponse:
    return page(request, 413, "Too large", "That is more than this yard takes in one request.")


def server_error(request: HttpRequest) -> HttpResponse:
    """Uses neither the session nor the database, which may be what failed."""
    error = sys.exc_info()[1]
    if error is not None and is_disk_full(error):
        return disk_full(request, error)
    if isinstance(error, OperationalError | InterfaceError):
        return database_away(request, error)
    if request.path.startswith("/api/"):
        return json_error(500, "The server could not answer; the error is in its log.")
    return HttpResponse(render_to_string("500.html"), status=500)


def database_away(request: HttpRequest, error: Exception) -> HttpResponse:
    """Answers 503 with Retry-After, because it is nobody's mistake and passes; logs one line."""
    if request.path.startswith("/api/"):
        message = f"{DATABASE_AWAY} {MAY_BE_DONE}" if request.method == "POST" else DATABASE_AWAY
        response: HttpResponse = json_error(503, message)
    else:
        response = HttpResponse(render_to_string("503.html"), status=503)
    response["Retry-After"] = str(RETRY_AFTER)
    _log_line(f"The database does not answer: {error}", request, response)
    return response


def disk_full(request: HttpRequest, error: BaseException) -> HttpResponse:
    """Answers 503 without Retry-After, as it does not pass by itself, and says what to delete; logs one line."""
    why = why_full(error)
    if request.path.startswith("/api/"):
        response: HttpResponse = json_error(503, SAID.format(why=why))
    else:
        response = HttpResponse(render_to_string("disk_full.html", {"why": why}), status=503)
    _log_line(f"{why}: {error}", request, response)
    return response


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    message = (
        "The form was too old, or came from another site, or cookies are switched off. "
        "Go back, reload the page and send it again."
    )
    return page(request, 403, "The form could not be trusted", message, not_taken=True)
