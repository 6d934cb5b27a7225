"""Redis being away is told once for all threads of a worker, and once that it is back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis

log = logging.getLogger(__name__)

AWAY = (redis.ConnectionError, redis.TimeoutError)
"""What says that Redis is away; other errors are an answer of it."""


class Outage:
    """Of one broker; every thread of a worker asks it through `watched`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None
        self._back = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Around what is asked of Redis: a failure begins an outage, an answer ends it."""
        begun = time.monotonic()
        try:
            yield
        except AWAY as error:
            self._failed(begun, error)
            raise
        self._answered(begun)

    def _failed(self, begun: float, error: Exception) -> None:
        with self._lock:
            if self._since is not None or begun < self._back:  # what was asked before it was back says nothing new
                return
            self._since = time.monotonic()
        log.warning("Redis (REDIS_URL) does not answer: %s It is asked again until it does.", error)

    def _answered(self, begun: float) -> None:
        with self._lock:
            if self._since is None or begun < self._since:
                return
            away, self._since, self._back = time.monotonic() - self._since, None, time.monotonic()
        log.warning("Redis answers again, after %.0f s.", away)
