"""The worker's side of the broker: connects to it, publishes entries of EVENTS, reads entries of its control stream."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from workers.contract import EVENTS, ControlEntry, control_stream
from workers.outage import Outage, is_away
from workers.settings import Settings

log = logging.getLogger(__name__)

ANSWER_LIMIT_S = 5.0
BLOCK_MS = 1000
MAX_BACKLOG = 256
"""With more unconsumed entries of EVENTS than this, files wait on disk: 64 MB if every batch were full."""
RETRY_S = (0.05, 2.0)
"""Shortest and longest wait, in seconds, between two tries while the broker is unreachable."""


def connect(url: str, limit_s: float = ANSWER_LIMIT_S) -> redis.Redis:
    """A client of the broker that does not retry: its caller decides when to try again. It waits `limit_s` seconds for
    a connection or an answer."""
    return redis.Redis.from_url(
        url, socket_timeout=limit_s, socket_connect_timeout=limit_s, retry=Retry(NoBackoff(), 0)
    )


class Backoff:
    """Waits that double from RETRY_S[0] to RETRY_S[1]; `reset` after a success."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._next = RETRY_S[0]

    def step(self) -> float:
        """Seconds to wait before the next try."""
        now, self._next = self._next, min(RETRY_S[1], 2 * self._next)
        return now


class Publisher:
    """Adds entries to EVENTS with this worker's name and boot id. Every method may raise redis.RedisError."""

    def __init__(self, settings: Settings, outage: Outage | None = None, limit_s: float = ANSWER_LIMIT_S) -> None:
        """`outage` = shared by this worker's threads; None: its own. `limit_s` = see `connect`."""
        self._redis, self._outage = connect(settings.redis_url, limit_s), outage or Outage()
        self._fields = {"worker": settings.name, "boot": settings.boot}

    def add(self, kind: str, body: Mapping[str, Any], data: bytes | None = None) -> None:
        with self._outage.watched(writes=True):
            self._redis.xadd(EVENTS, self._entry(kind, body, data))

    def add_all(self, entries: Iterable[tuple[str, Mapping[str, Any], bytes]]) -> None:
        """Adds all of them or none; readers of the stream find them together."""
        with self._outage.watched(writes=True), self._redis.pipeline(transaction=True) as pipe:
            for entry in entries:
                pipe.xadd(EVENTS, self._entry(*entry))
            pipe.execute()

    def _entry(self, kind: str, body: Mapping[str, Any], data: bytes | None) -> dict[Any, Any]:
        own = {**self._fields, "kind": kind, "body": json.dumps(body)}
        return own if data is None else {**own, "data": data}

    def backlog(self) -> int:
        """Number of entries that the controller has not consumed: it deletes those that it has."""
        with self._outage.watched():
            return int(self._redis.xlen(EVENTS))


class ControlReader(threading.Thread):
    """Reads the control stream for ever and passes each entry to `on_entry`.

    An entry is deleted once it was passed on; as entries only repeat what the database says, reading one twice or
    losing it does no harm.
    """

    def __init__(
        self, settings: Settings, on_entry: Callable[[ControlEntry], None], outage: Outage | None = None
    ) -> None:
        super().__init__(name="control", daemon=True)
        self._stream = control_stream(settings.name)
        self._redis, self._outage = connect(settings.redis_url), outage or Outage()
        self._on_entry = on_entry
        self._leaving = threading.Event()

    def leave(self) -> None:
        self._leaving.set()

    def run(self) -> None:
        backoff = Backoff()
        while not self._leaving.is_set():
            try:
                self._read()
                backoff.reset()
            except redis.RedisError as error:
                wait = backoff.step()
                if not is_away(error):
                    log.warning("control stream: %s; next try in %.1f s", error, wait)
                self._leaving.wait(wait)

    def _read(self) -> None:
        """Waits for entries (at most BLOCK_MS), passes them on, and deletes them."""
        with self._outage.watched():
            answer: Any = self._redis.xread({self._stream: "0"}, count=100, block=BLOCK_MS)
        streams = answer.values() if isinstance(answer, dict) else (rows for _, rows in answer or ())
        for rows in streams:
            entries = rows[0] if rows and isinstance(rows[0], list) else rows
            for _, fields in entries:
                self._hand_over(fields)
            if entries:
                with self._outage.watched(writes=True):
                    self._redis.xdel(self._stream, *(entry_id for entry_id, _ in entries))

    def _hand_over(self, fields: Mapping[bytes, bytes]) -> None:
        try:
            entry: ControlEntry = json.loads(fields[b"body"])
            int(entry["attempt"]), str(entry["kind"])
        except (KeyError, TypeError, ValueError) as error:
            log.error("dropped a malformed control entry %r: %r", fields, error)
            return
        self._on_entry(entry)
