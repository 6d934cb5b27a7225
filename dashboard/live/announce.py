"""Publishes 'new data' entries for the SSE readers of every web process.

A late announcement only delays a page, so an unreachable broker never fails the write that is announced; and only the
first announcement waits for it.
"""

from __future__ import annotations

import json
import logging
import threading
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

Entry = tuple[tuple[str, Any], ...]
"""Names and values of one entry."""
KEEP_ENTRIES = 10_000
"""Approximate length of the stream: how far back a reader that lost its connection can resume without fetching all."""
ANSWER_LIMIT_S = 1.0
AGAIN_S = 1.0
"""Seconds after which a broker that did not answer is tried again."""


class Announcer:
    """Appends to the stream of one broker. While it does not answer, entries are kept, and a timer's thread tries to
    send them, so that the requests of that time do not wait for it one after another."""

    def __init__(self, url: str) -> None:
        # One retry opens a new connection after the broker was restarted; more retries would delay a request.
        self._client = redis.Redis.from_url(
            url, socket_timeout=ANSWER_LIMIT_S, socket_connect_timeout=ANSWER_LIMIT_S, retry=Retry(NoBackoff(), 1)
        )
        self._lock = threading.Lock()
        self._kept: dict[Entry, None] = {}
        self._away = False

    def append(self, fields: dict[str, Any]) -> None:
        entry = tuple(fields.items())
        if self._keeps(entry):
            return
        try:
            self._send([entry])
        except redis.RedisError as error:
            self._keep(entry, error)

    def _keeps(self, entry: Entry) -> bool:
        """Keeps the entry if the broker did not answer a moment ago; equal ones once, and no more than the stream."""
        with self._lock:
            if self._away and len(self._kept) < KEEP_ENTRIES:
                self._kept[entry] = None
            return self._away

    def _keep(self, entry: Entry, error: redis.RedisError) -> None:
        with self._lock:
            begins, self._away = not self._away, True
            self._kept[entry] = None
        if begins:
            log.warning("the broker takes no announcements; they follow when it does: %s", error)
            self._try_later()

    def _try_later(self) -> None:
        timer = threading.Timer(AGAIN_S, self._send_kept)
        timer.daemon = True
        timer.start()

    def _send_kept(self) -> None:
        with self._lock:
            entries, self._kept = self._kept, {}  # what is announced from now on is sent again
        try:
            self._send(entries)
        except redis.RedisError:
            with self._lock:
                self._kept = entries | self._kept
        else:
            with self._lock:
                self._away = bool(self._kept)
        if self._away:
            self._try_later()

    def _send(self, entries: Iterable[Entry]) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            for entry in entries:
                fields: dict[Any, Any] = dict(entry)
                pipe.xadd(LIVE, fields, maxlen=KEEP_ENTRIES, approximate=True)
            pipe.execute()


@lru_cache(maxsize=4)
def announcer(url: str) -> Announcer:
    return Announcer(url)


def publish(run: int | None, study: int | None, what: Iterable[str]) -> None:
    """Appends one entry now. `run` None: the entry is about the fleet. An unreachable broker is only logged."""
    announcer(settings.REDIS_URL).append(
        {"run": run or "", "study": study or "", "what": json.dumps(sorted(set(what)))}
    )


def announce(run: int | None, study: int | None, *what: str) -> None:
    """Publishes after the surrounding transaction has committed; immediately if there is none."""
    transaction.on_commit(lambda: publish(run, study, what), robust=True)


def announce_search(search: int) -> None:
    """Announces a change of a search after the surrounding transaction has committed; immediately if there is none."""
    fields = {"search": search, "what": json.dumps(["state"])}
    transaction.on_commit(lambda: announcer(settings.REDIS_URL).append(fields), robust=True)
