"""Refuses request bodies that are too large before Django reads them.

Django's ASGI handler spools the whole body to disk before it looks at the request, so a view can check the size or the
sender only after up to 200 MB have arrived. This wrapper checks Content-Length at once, counts the bytes as they
arrive, and accepts more than MAX_BODY only from those who may upload.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

from django.db import InterfaceError, OperationalError
from django.template.loader import render_to_string

from dashboard.errors import DATABASE_AWAY, envelope
from parallel_core.analysis.quantities import bytes_text
from parallel_core.limits import MAX_CORPUS_BYTES, MAX_TRACE_BYTES

log = logging.getLogger(__name__)
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[..., Awaitable[None]]
Answer = tuple[bytes, bytes]
"""Body and content type."""
MayUpload = Callable[[Scope], Awaitable[bool]]

UPLOADS = (
    (re.compile(r"/runs/new/|/studies/\d+/add/|/api/v1/corpora"), MAX_CORPUS_BYTES),
    (re.compile(r"/traces/new/|/api/v1/traces"), MAX_TRACE_BYTES),
)
"""Addresses that accept files, and the largest size of the files in bytes."""
MIB = 1024 * 1024
FORM_SLACK = MIB
"""Bytes that the other fields of an upload's form may add."""
MAX_BODY = 8 * MIB
MAX_DRAIN = 64 * MIB
"""Bytes that are read and discarded after the answer: a browser does not read the answer while it is still sending."""
PAGE = "413.html"
JSON, HTML = b"application/json", b"text/html; charset=utf-8"


class TooLarge(Exception):
    """The body has more than `most` bytes. `members`: the address accepts more, but only from members."""

    def __init__(self, most: int, members: bool = False) -> None:
        super().__init__(most)
        self.most, self.members = most, members


class DatabaseAway(Exception):
    """The database does not answer, so it is unknown whether the sender may upload."""


class BodyLimit:
    """ASGI wrapper that answers 413, or 503 without a database, as a page or as JSON under /api/.

    `may_upload` is called only for bodies above MAX_BODY.
    """

    def __init__(self, app: App, may_upload: MayUpload) -> None:
        self.app = app
        self.may_upload = may_upload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        room = Room(scope, self.may_upload)
        try:
            await room.admit(declared(scope))
            await self.app(scope, counted(receive, room), send)
        except TooLarge as error:
            await refuse(receive, send, 413, too_large(scope["path"], error))
        except DatabaseAway as error:
            log.warning("the database does not answer: %s", error)
            await refuse(receive, send, 503, database_away(scope["path"]))


class Room:
    """How many bytes of one request's body are accepted."""

    def __init__(self, scope: Scope, may_upload: MayUpload) -> None:
        self._scope = scope
        self._may_upload = may_upload
        self._granted = MAX_BODY

    async def admit(self, size: int) -> None:
        """Raises TooLarge if a body of `size` bytes is not accepted, DatabaseAway if that cannot be determined."""
        if size <= self._granted:
            return
        limit = limit_of(self._scope["path"])
        if size > limit:
            raise TooLarge(limit if limit == MAX_BODY else limit - FORM_SLACK)
        try:
            allowed = await self._may_upload(self._scope)
        except (OperationalError, InterfaceError) as error:
            raise DatabaseAway(error) from error
        if not allowed:
            raise TooLarge(MAX_BODY, members=True)
        self._granted = limit


def limit_of(path: str) -> int:
    """The most bytes that the body of a request to this address may have."""
    return next((size + FORM_SLACK for address, size in UPLOADS if address.fullmatch(path)), MAX_BODY)


def declared(scope: Scope) -> int:
    """Content-Length in bytes; 0 if it is missing or not a number (the server itself refuses the latter)."""
    text = dict(scope["headers"]).get(b"content-length", b"0").decode("latin-1")
    return int(text) if text.isdecimal() else 0


def counted(receive: Receive, room: Room) -> Receive:
    """Wraps `receive` to count bytes; it raises TooLarge or DatabaseAway once `room` does not admit the total."""
    seen = 0

    async def count() -> dict[str, Any]:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        await room.admit(seen)
        return message

    return count


async def refuse(receive: Receive, send: Send, status: int, answer: Answer) -> None:
    """Sends the whole answer, then reads up to MAX_DRAIN more bytes, so that the client gets to read the answer."""
    body, kind = answer
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    left = MAX_DRAIN
    while left > 0:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body"):
            break
        left -= len(message.get("body", b""))
    await send({"type": "http.response.body", "body": b""})


def too_large(path: str, error: TooLarge) -> Answer:
    """The page or JSON that says how much this address accepts, and from whom."""
    most = bytes_text(error.most)
    if path.startswith("/api/"):
        message = f"The request is larger than the {most} that this address takes."
        if error.members:
            message = f"More than {most} is taken from members alone: send a valid token that may submit."
        return json.dumps(envelope(413, message)).encode(), JSON
    return render_to_string(PAGE, {"most": most, "members": error.members, "path": path}).encode(), HTML


def database_away(path: str) -> Answer:
    """The page or JSON of a 503, with the same text that Django's views answer with."""
    if path.startswith("/api/"):
        return json.dumps(envelope(503, DATABASE_AWAY)).encode(), JSON
    return render_to_string("503.html").encode(), HTML
