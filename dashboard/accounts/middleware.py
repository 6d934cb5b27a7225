"""Middleware: the Content-Security-Policy header, sign-in for htmx requests, bodies of 405 responses, and gzip."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.middleware.gzip import GZipMiddleware
from django.utils.deprecation import MiddlewareMixin
from ninja.errors import HttpError

from dashboard import errors
from dashboard.api.auth import ReadToken

# Plotly needs inline styles and, for its PNG export, data: and blob: images; scripts come from our own files only.
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
Handler = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]


class ContentSecurityPolicyMiddleware:
    """Adds the header Content-Security-Policy; works under WSGI and ASGI without switching to a thread."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.is_async:
            return self._acall(request)
        return self._stamp(self.get_response(request))  # type: ignore[arg-type]

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        return self._stamp(await self.get_response(request))  # type: ignore[misc]

    @staticmethod
    def _stamp(response: HttpResponseBase) -> HttpResponseBase:
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response


class SignedInMiddleware(LoginRequiredMiddleware):
    """Django's LoginRequiredMiddleware, but an htmx request gets a plain 401: htmx would follow the redirect and put
    the sign-in page into the middle of the open page. A GET of a view marked `guards.token_may_read` may bring a bearer
    token instead of a session; one that is no good is refused as by the API."""

    def process_view(
        self, request: HttpRequest, view_func: Callable[..., HttpResponseBase], view_args: Any, view_kwargs: Any
    ) -> HttpResponseBase | None:
        bearer = request.headers.get("Authorization", "").lower().startswith("bearer ")
        if bearer and request.method in ("GET", "HEAD") and getattr(view_func, "token_may_read", False):
            try:
                ReadToken()(request)
            except HttpError as refused:
                return errors.json_error(refused.status_code, str(refused))
        return super().process_view(request, view_func, view_args, view_kwargs)

    def handle_no_permission(  # type: ignore[override]
        self, request: HttpRequest, view_func: Callable[..., HttpResponseBase]
    ) -> HttpResponseBase:
        if "HX-Request" in request.headers:
            said = "You are signed out. Sign in again."
            return HttpResponse(said, status=401, content_type="text/plain; charset=utf-8")
        return super().handle_no_permission(request, view_func)


class WrongMethodMiddleware(MiddlewareMixin):
    """Gives Django's empty 405 responses a body that says which methods are allowed."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if not isinstance(response, HttpResponseNotAllowed) or response.content:
            return response
        return errors.wrong_method(request, response["Allow"])


class CompressedPagesMiddleware(GZipMiddleware):
    """Django's GZipMiddleware, except for streaming responses: it would hold back the events of a live page until a
    block is full."""

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        if response.streaming:
            return response
        return super().process_response(request, response)
