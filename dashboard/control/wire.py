"""Reads entries of the EVENTS stream in order, as its only consumer; they are acknowledged after the commit.

Delivery is at least once: what was read but not acknowledged (a crash, a rolled back transaction) is read again before
anything new, in the original order.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import redis

from workers.contract import EVENTS, GROUP

log = logging.getLogger(__name__)

READ_COUNT = 256
BLOCK_MS = 200
ANSWER_LIMIT_S = 2.0
CONSUMER = "controller"


@dataclass(frozen=True)
class Entry:
    """One stream entry."""

    id: bytes
    worker: str
    boot: str
    kind: str
    body: dict[str, Any]
    data: bytes

    @property
    def at(self) -> float:
        """Unix seconds when it arrived at the broker, by the broker's clock."""
        return int(self.id.split(b"-")[0]) / 1000


def parse(raw_id: bytes, fields: dict[bytes, bytes]) -> Entry:
    """Parses a stream entry. Raises ValueError or KeyError if it does not follow the contract."""
    body = json.loads(fields[b"body"])
    if not isinstance(body, dict):
        raise ValueError("body is not an object")
    return Entry(
        id=raw_id,
        worker=fields[b"worker"].decode(),
        boot=fields[b"boot"].decode(),
        kind=fields[b"kind"].decode(),
        body=body,
        data=fields.get(b"data", b""),
    )


@dataclass
class Read:
    """The result of one read: `ids` to acknowledge, the entries that parsed, and whether nothing more is waiting.

    `at` = Unix seconds of the read by the broker's clock; 0 if there was nothing to read.
    """

    ids: list[bytes]
    entries: list[Entry]
    caught_up: bool
    at: float


class Reader:
    """The only consumer of the group GROUP."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._recovering = True
        self._group_known = False

    def start_over(self) -> None:
        """After a failure, makes the next reads begin with the entries that are pending."""
        self._recovering = True
        self._group_known = False

    def read(self) -> Read:
        """Waits up to BLOCK_MS for entries. Raises redis.RedisError."""
        if not self._group_known:
            self._make_group()
        if self._recovering:
            answer: Any = self._redis.xautoclaim(EVENTS, GROUP, CONSUMER, min_idle_time=0, count=READ_COUNT)
            if answer[1]:
                return self._parsed(answer[1], caught_up=False)
            self._recovering = False
        found: Any = self._redis.xreadgroup(GROUP, CONSUMER, {EVENTS: ">"}, count=READ_COUNT, block=BLOCK_MS)
        rows = next(iter(found.values()))[0] if isinstance(found, dict) and found else found[0][1] if found else []
        return self._parsed(rows, caught_up=len(rows) < READ_COUNT)

    def acknowledge(self, ids: Iterable[bytes]) -> None:
        """Acknowledges entries whose effects are committed, and deletes them to free the broker's memory."""
        ids = list(ids)
        if ids:
            with self._redis.pipeline(transaction=True) as pipe:
                pipe.xack(EVENTS, GROUP, *ids)
                pipe.xdel(EVENTS, *ids)
                pipe.execute()

    def _make_group(self) -> None:
        try:
            self._redis.xgroup_create(EVENTS, GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._group_known = True

    def _parsed(self, rows: list[tuple[bytes, dict[bytes, bytes]]], caught_up: bool) -> Read:
        entries = []
        for raw_id, fields in rows:
            try:
                entries.append(parse(raw_id, fields))
            except (ValueError, KeyError) as error:
                log.error("dropped a malformed entry %r: %r", raw_id, error)
        return Read([raw_id for raw_id, _ in rows], entries, caught_up, self._now() if rows else 0.0)

    def _now(self) -> float:
        seconds, microseconds = self._redis.time()
        return float(seconds) + microseconds / 1e6
