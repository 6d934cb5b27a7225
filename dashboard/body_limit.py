"""Refuses request bodies that are too large before Django reads them.

Django's ASGI handler first spools the whole body to disk and only then looks at the request, so a limit inside a view
comes 200 MB too late. This wrapper looks at Content-Length at once, and counts where there is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from django.template.loader import render_to_string

from dashboard.errors import envelope
from parallel_core.analysis.quantities import bytes_text
from parallel_core.limits import MAX_CORPUS_BYTES, MAX_TRACE_BYTES

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[..., Awaitable[None]]

UPLOADS = (
    (re.compile(r"/runs/new/|/studies/\d+/add/|/api/v1/corpora"), MAX_CORPUS_BYTES),
    (re.compile(r"/traces/new/|/api/v1/traces"), MAX_TRACE_BYTES),
)
"""Addresses that take files, and the bytes these may have."""
MIB = 1024 * 1024
FORM_SLACK = MIB
"""What the other fields of an upload's form may add."""
MAX_BODY = 8 * MIB
MAX_DRAIN = 64 * MIB
"""A browser that is still sending does not read our answer: this much is taken and thrown away after it."""
PAGE = "413.html"


class TooLarge(Exception):
    """The body went on past the limit."""


class BodyLimit:
    """ASGI wrapper. Answers 413 (a page, or JSON under /api/)."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        limit = limit_of(scope["path"])
        if declared(scope) > limit:
            return await refuse(scope, receive, send)
        try:
            await self.app(scope, counted(receive, limit), send)
        except TooLarge:
            await refuse(scope, receive, send)


def limit_of(path: str) -> int:
    """Bytes that a request to this address may have."""
    return next((size + FORM_SLACK for address, size in UPLOADS if address.fullmatch(path)), MAX_BODY)


def declared(scope: Scope) -> int:
    """Content-Length, 0 where it is missing or no number (the server itself refuses the latter)."""
    text = dict(scope["headers"]).get(b"content-length", b"0").decode("latin-1")
    return int(text) if text.isdecimal() else 0


def counted(receive: Receive, limit: int) -> Receive:
    """`receive` that raises TooLarge once more than `limit` bytes came."""
    seen = 0

    async def count() -> dict[str, Any]:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise TooLarge
        return message

    return count


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the whole answer, then lets the client finish sending (within reason) so that it comes to read it."""
    body, kind = answer(scope["path"])
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    left = MAX_DRAIN
    while left > 0:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body"):
            break
        left -= len(message.get("body", b""))
    await send({"type": "http.response.body", "body": b""})


def answer(path: str) -> tuple[bytes, bytes]:
    """The page or the JSON that says how much this address takes."""
    most = bytes_text(limit_of(path) if limit_of(path) == MAX_BODY else limit_of(path) - FORM_SLACK)
    if path.startswith("/api/"):
        message = f"The request is larger than the {most} that this address takes."
        return json.dumps(envelope(413, message)).encode(), b"application/json"
    return render_to_string(PAGE, {"most": most, "path": path}).encode(), b"text/html; charset=utf-8"
