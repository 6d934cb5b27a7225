"""Logs once for all threads of a worker that Redis cannot be reached or takes nothing, and once that it does again."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis

log = logging.getLogger(__name__)

AWAY = (redis.ConnectionError, redis.TimeoutError)
"""Errors that mean that Redis cannot be reached; other errors are answers of it."""
_REFUSED = re.compile(r"(?:^|caused error: )((?:MISCONF|NOREPLICAS|OOM|READONLY) .*)", re.DOTALL)
"""What it answers to whatever anybody writes, as when its disk is full; behind the command, if that was one of many."""


def refusal(error: Exception) -> str:
    """Why Redis takes nothing from anybody; '' if the error says something else."""
    found = _REFUSED.search(str(error)) if isinstance(error, redis.ResponseError) else None
    return found[1] if found else str(error) if isinstance(error, _NAMED) else ""


def is_away(error: Exception) -> bool:
    """Whether Redis cannot be reached or takes nothing; that was logged (`Outage.watched`)."""
    return isinstance(error, AWAY) or bool(refusal(error))


_NAMED = (redis.ReadOnlyError, redis.OutOfMemoryError)
"""Of these the client keeps no more than the words."""


class Outage:
    """The state of one broker, shared by all threads of a worker through `watched`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None
        self._back = 0.0
        self._refuses = False

    @contextmanager
    def watched(self, writes: bool = False) -> Iterator[None]:
        """Context for a request to Redis: a failure begins an outage, an answer ends it. One in which Redis `refuses`
        ends when it takes what is written: it answers who reads all the time."""
        begun = time.monotonic()
        try:
            yield
        except redis.RedisError as error:
            if is_away(error):
                self._failed(begun, error)
            raise
        self._answered(begun, writes)

    def _failed(self, begun: float, error: Exception) -> None:
        with self._lock:
            if self._since is not None or begun < self._back:  # the request began before Redis was back: nothing new
                return
            self._since, self._refuses = time.monotonic(), not isinstance(error, AWAY)
        how = f"takes nothing: {refusal(error).rstrip('.')}." if self._refuses else f"does not answer: {error}"
        log.warning("Redis (REDIS_URL) %s It is asked again until it does.", how)

    def _answered(self, begun: float, wrote: bool) -> None:
        with self._lock:
            if self._since is None or begun < self._since or (self._refuses and not wrote):
                return
            away, self._since, self._back = time.monotonic() - self._since, None, time.monotonic()
            verb = "takes what is sent" if self._refuses else "answers"
        log.warning("Redis %s again, after %.0f s.", verb, away)
