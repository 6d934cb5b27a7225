"""Logs an unreachable Redis once for all threads of a worker, and once that it answers again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis

log = logging.getLogger(__name__)

AWAY = (redis.ConnectionError, redis.TimeoutError)
"""Errors that mean that Redis cannot be reached; other errors are answers of it."""


class Outage:
    """The state of one broker, shared by all threads of a worker through `watched`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None
        self._back = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Context for a request to Redis: a failure begins an outage, an answer ends it."""
        begun = time.monotonic()
        try:
            yield
        except AWAY as error:
            self._failed(begun, error)
            raise
        self._answered(begun)

    def _failed(self, begun: float, error: Exception) -> None:
        with self._lock:
            if self._since is not None or begun < self._back:  # the request began before Redis was back: nothing new
                return
            self._since = time.monotonic()
        log.warning("Redis (REDIS_URL) does not answer: %s It is asked again until it does.", error)

    def _answered(self, begun: float) -> None:
        with self._lock:
            if self._since is None or begun < self._since:
                return
            away, self._since, self._back = time.monotonic() - self._since, None, time.monotonic()
        log.warning("Redis answers again, after %.0f s.", away)
