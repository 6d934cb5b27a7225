"""`GET /runs/{id}?wait=30`: an answer that comes when the state of the run changes, so that scripts need not poll. That
a run has ended is told with its summary, which the controller computes right after.

Who waits is a coroutine with a subscription to the live stream, as an open page has (`dashboard.live`): it holds no
database connection and keeps no thread busy. Under WSGI it would hold a worker, so there the answer comes at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import HttpRequest, HttpResponseBase

from dashboard.control.summary import unsummarised
from dashboard.live.hub import Subscription, hub
from dashboard.live.topics import EVERYTHING
from dashboard.runs.models import ENDED, Run

MOST_S = 60
LOOK_S = 10.0
"""Seconds after which the state is looked at without news, too: while the broker is away there are none."""


def patient(view: Callable[..., HttpResponseBase]) -> Callable[..., Awaitable[HttpResponseBase]]:
    """Wraps the view of one run: with `wait` in the query it answers anew, with all its checks, once the state that it
    was about to tell has changed, or after so many seconds. A run that has ended and been summarised is answered at
    once."""

    @wraps(view, updated=("__dict__",))
    async def entered(request: HttpRequest, run_id: str) -> HttpResponseBase:
        answer = await sync_to_async(view)(request, run_id=run_id)
        asks = request.method == "GET" and request.GET.get("wait", "0") != "0" and isinstance(request, ASGIRequest)
        if not asks or answer.status_code != 200:
            return answer
        told = json.loads(answer.content)["data"]  # type: ignore[attr-defined]
        if told["state"] in ENDED and told["summary"] and "outdated" not in told["summary"]:
            return answer
        await _changed(int(run_id), told["state"], float(request.GET["wait"]))
        return await sync_to_async(view)(request, run_id=run_id)

    return entered


async def _changed(run: int, told: str, seconds: float) -> None:
    """Returns when there is other news of the run than the state that was `told`, after so many seconds, or when the
    server is to end."""
    until, shared, topic = time.monotonic() + seconds, hub(), f"run:{run}"
    subscription = await shared.subscribe(frozenset({topic}))
    try:
        while not subscription.closed and await sync_to_async(_same)(run, told):
            left = until - time.monotonic()
            if left <= 0:
                return
            await _news(subscription, topic, min(left, LOOK_S))
    finally:
        shared.unsubscribe(subscription)


async def _news(subscription: Subscription, topic: str, limit: float) -> None:
    """Waits for news of the run's state or its summary, up to `limit` seconds."""
    until = time.monotonic() + limit
    while not subscription.closed and (left := until - time.monotonic()) > 0:
        news: dict[str, Any] = await subscription.take(left)
        if news.get(topic, set()) & {"state", "summary", EVERYTHING}:
            return


def _same(run: int, told: str) -> bool:
    """Whether there is nothing to tell but the state that was `told`: it is the same, or the run has ended and is about
    to be summarised. Not of one that was deleted. Closes the thread's connections, so that none stays open while the
    request waits."""
    try:
        state = Run.objects.filter(pk=run).values_list("state", flat=True).first()
        return run in unsummarised(run) if state in ENDED else state == told
    finally:
        connections.close_all()
