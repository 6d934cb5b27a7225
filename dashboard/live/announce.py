"""'New data' entries for the SSE readers of every web process. An announcement that is lost costs a page nothing but
time (it refetches after its next one), so a broker that is away never fails the write that is announced."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import redis
from django.conf import settings
from django.db import transaction
from redis.backoff import NoBackoff
from redis.retry import Retry

from workers.contract import LIVE

log = logging.getLogger(__name__)

KEEP_ENTRIES = 10_000
"""How far back a reader that lost its connection can resume without refetching everything."""
ANSWER_LIMIT_S = 1.0


@lru_cache(maxsize=4)
def _client(url: str) -> redis.Redis:
    # One retry opens a new connection where the old one died with a restarted broker; more would hold up a request.
    return redis.Redis.from_url(
        url, socket_timeout=ANSWER_LIMIT_S, socket_connect_timeout=ANSWER_LIMIT_S, retry=Retry(NoBackoff(), 1)
    )


def publish(run: int | None, study: int | None, what: Iterable[str]) -> None:
    """Appends one entry now. `run` None = about the fleet. Unreachable broker: a warning, no exception."""
    _append({"run": run or "", "study": study or "", "what": json.dumps(sorted(set(what)))})


def _append(fields: dict[Any, Any]) -> None:
    try:
        _client(settings.REDIS_URL).xadd(LIVE, fields, maxlen=KEEP_ENTRIES, approximate=True)
    except redis.RedisError as error:
        log.warning("could not announce %s: %s", fields, error)


def announce(run: int | None, study: int | None, *what: str) -> None:
    """Publishes once the surrounding transaction has committed (at once outside of one)."""
    transaction.on_commit(lambda: publish(run, study, what), robust=True)


def announce_search(search: int) -> None:
    """The same of a search that has moved on."""
    transaction.on_commit(lambda: _append({"search": search, "what": json.dumps(["state"])}), robust=True)
