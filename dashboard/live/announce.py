"""Publishes 'new data' entries for the SSE readers of every web process.

A lost announcement only delays a page (it fetches after the next one), so an unreachable broker never fails the write
that is announced.
"""

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
"""Approximate length of the stream: how far back a reader that lost its connection can resume without fetching all."""
ANSWER_LIMIT_S = 1.0


@lru_cache(maxsize=4)
def _client(url: str) -> redis.Redis:
    # One retry opens a new connection after the broker was restarted; more retries would delay a request.
    return redis.Redis.from_url(
        url, socket_timeout=ANSWER_LIMIT_S, socket_connect_timeout=ANSWER_LIMIT_S, retry=Retry(NoBackoff(), 1)
    )


def publish(run: int | None, study: int | None, what: Iterable[str]) -> None:
    """Appends one entry now. `run` None: the entry is about the fleet. An unreachable broker is only logged."""
    _append({"run": run or "", "study": study or "", "what": json.dumps(sorted(set(what)))})


def _append(fields: dict[Any, Any]) -> None:
    try:
        _client(settings.REDIS_URL).xadd(LIVE, fields, maxlen=KEEP_ENTRIES, approximate=True)
    except redis.RedisError as error:
        log.warning("could not announce %s: %s", fields, error)


def announce(run: int | None, study: int | None, *what: str) -> None:
    """Publishes after the surrounding transaction has committed; immediately if there is none."""
    transaction.on_commit(lambda: publish(run, study, what), robust=True)


def announce_search(search: int) -> None:
    """Announces a change of a search after the surrounding transaction has committed; immediately if there is none."""
    transaction.on_commit(lambda: _append({"search": search, "what": json.dumps(["state"])}), robust=True)
