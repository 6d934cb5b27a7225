"""GET /live/stream?topics=run:12,study:3,fleet,runs: server-sent events, one stream for each browser tab.

Messages: `hello` {"live": ...} (with an id to resume from), unnamed ones {"topic": ..., "what": [...]}, `beat`
{"live": ...}, and `bye` {"why": ...} before the server ends the stream. `live` is false while the server itself gets no
news. A `beat` is sent when this changes, and after KEEP_ALIVE_S without another message, so a browser that gets nothing
for longer knows that its connection is gone. Resuming: the Last-Event-ID header, or `last` in the query.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator

from asgiref.sync import sync_to_async
from django.contrib.auth import get_user
from django.contrib.auth.decorators import login_not_required
from django.db import connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.views.decorators.http import require_GET

from dashboard.accounts.sessions import user_of
from dashboard.live.hub import Hub, hub
from dashboard.live.topics import parse_topics

KEEP_ALIVE_S = 15.0
"""stream_source.js waits twice as long before it reconnects."""
AUTHORISE_S = 30.0


@login_not_required
@require_GET
async def stream(request: HttpRequest) -> HttpResponseBase:
    """The stream. 401 if nobody is signed in (a stream cannot follow a redirect to the sign-in), 400 for wrong
    topics."""
    key = await sync_to_async(_authorised_session)(request)
    if key is None:
        return HttpResponse("Sign in first.", status=401, content_type="text/plain; charset=utf-8")
    try:
        topics = parse_topics(request.GET.get("topics", ""))
    except ValueError as error:
        return HttpResponse(str(error), status=400, content_type="text/plain; charset=utf-8")
    last_id = request.headers.get("Last-Event-ID") or request.GET.get("last", "")
    response = StreamingHttpResponse(_events(hub(), topics, last_id, key), content_type="text/event-stream")
    response.headers["Cache-Control"] = "no-cache, no-transform"
    response.headers["X-Accel-Buffering"] = "no"
    return response


def _authorised_session(request: HttpRequest) -> str | None:
    """The session key of the request if its user is active, else None.

    Closes the thread's database connections: a stream stays open for hours without using them, and hundreds of open
    streams must not each hold one.
    """
    try:
        user = get_user(request)
        return request.session.session_key if user.is_authenticated and user.is_active else None
    finally:
        connections.close_all()


def _still_authorised(key: str) -> bool:
    """Whether the session still exists and its user is still active."""
    try:
        return user_of(key) is not None
    finally:
        connections.close_all()


async def _events(shared: Hub, topics: frozenset[str], last_id: str, key: str) -> AsyncGenerator[str]:
    # Not in the view: if the client disconnects before this generator starts, its `finally` would never run.
    subscription = await shared.subscribe(topics, last_id)
    try:
        told = shared.readable
        yield f"retry: 2000\nid: {subscription.position}\n{_liveness('hello', told)}"
        checked = time.monotonic()
        while True:
            due = checked + AUTHORISE_S - time.monotonic()
            news = await subscription.take(max(0.0, min(KEEP_ALIVE_S, due)))
            if subscription.closed:
                yield _bye("restart")
                return
            if time.monotonic() >= checked + AUTHORISE_S:
                # Not in the request's own thread, whose connection would stay open as long as the stream.
                if not await sync_to_async(_still_authorised, thread_sensitive=False)(key):
                    yield _bye("signed-out")
                    return
                checked = time.monotonic()
            if not news or told is not shared.readable:
                told = shared.readable
                yield _liveness("beat", told)
            if news:
                yield messages(news, subscription.position)
    finally:
        shared.unsubscribe(subscription)


def messages(news: dict[str, set[str]], position: str) -> str:
    """One message for each topic. Only the last has the id, so a client cut off in between gets all of them again."""
    bodies = [json.dumps({"topic": topic, "what": sorted(what)}) for topic, what in sorted(news.items())]
    heads = ["data: " + body for body in bodies[:-1]] + [f"id: {position}\ndata: {bodies[-1]}"]
    return "".join(head + "\n\n" for head in heads)


def _liveness(event: str, live: bool) -> str:
    return f"event: {event}\ndata: {json.dumps({'live': live})}\n\n"


def _bye(why: str) -> str:
    return f"event: bye\ndata: {json.dumps({'why': why})}\n\n"
