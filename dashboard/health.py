"""`/healthz`: whether the web and its database answer, for load balancers and container engines, without a token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.db import Error, connection
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed

from dashboard.errors import DATABASE_AWAY, RETRY_AFTER

PATH = "/healthz"
METHODS = ("GET", "HEAD")


class HealthMiddleware:
    """Answers PATH before anything asks for the host, a session or a sign-in: a load balancer names the host by its
    address, which is not in ALLOWED_HOSTS. Other requests pass at once, under ASGI as coroutines."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[..., Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if request.path_info != PATH:
            return self.get_response(request)
        return sync_to_async(answer)(request) if self.is_async else answer(request)


def answer(request: HttpRequest) -> HttpResponse:
    """200, or 503 where the database does not answer; never with its own words, which may name its host and user."""
    response: HttpResponse
    if request.method not in METHODS:
        response = HttpResponseNotAllowed(METHODS, "This address is read only.\n", content_type="text/plain")
    elif has_database():
        response = HttpResponse("ok\n", content_type="text/plain")
    else:
        response = HttpResponse(f"{DATABASE_AWAY}\n", status=503, content_type="text/plain")
        response["Retry-After"] = str(RETRY_AFTER)
    response["Cache-Control"] = "no-store"
    return response


def has_database() -> bool:
    """Whether the database answers to a query of no table."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            return cursor.fetchone() is not None
    except Error:
        return False
