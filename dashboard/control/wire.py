"""Reads entries of the EVENTS stream in order, as its only consumer; they are acknowledged after the commit.

Delivery is at least once: what was read but not acknowledged (a crash, a rolled back transaction) is read again before
anything new, in the original order.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import redis

from workers.contract import EVENTS, GROUP

log = logging.getLogger(__name__)

READ_COUNT = 256
BLOCK_MS = 200
ANSWER_LIMIT_S = 2.0
CONSUMER = "controller"
MOST_LEVELS = 50
"""How deep a body may be nested. Whatever looks into it by recursion, also to log it, has room for far more."""


@dataclass(frozen=True)
class Entry:
    """One stream entry."""

    id: bytes
    worker: str
    boot: str
    kind: str
    body: dict[str, Any]
    data: bytes
    age: float = 0.0
    """Seconds from its arrival at the broker until it was read, by the broker's clock."""

    @property
    def at(self) -> float:
        """Unix seconds when it arrived at the broker, by the broker's clock."""
        return int(self.id.split(b"-")[0]) / 1000


def parse(raw_id: bytes, fields: dict[bytes, bytes], now: float = 0.0) -> Entry:
    """Parses a stream entry, read at `now` by the broker's clock. Raises ValueError or KeyError if it does not follow
    the contract."""
    try:
        body = json.loads(fields[b"body"])
    except RecursionError:
        raise ValueError("body is nested too deeply") from None
    if not isinstance(body, dict):
        raise ValueError("body is not an object")
    if _deeper(body, MOST_LEVELS):
        raise ValueError("body is nested too deeply")
    entry = Entry(
        id=raw_id,
        worker=fields[b"worker"].decode(),
        boot=fields[b"boot"].decode(),
        kind=fields[b"kind"].decode(),
        body=body,
        data=fields.get(b"data", b""),
    )
    return replace(entry, age=max(0.0, now - entry.at))


def _deeper(value: Any, levels: int) -> bool:
    """Whether objects and lists are nested in the value more than `levels` deep. Not by recursion, which has no room
    for what it is to find."""
    inside = [value]
    for _ in range(levels + 1):
        every = (one.values() if isinstance(one, dict) else one for one in inside if isinstance(one, dict | list))
        inside = [one for each in every for one in each]
        if not inside:
            return False
    return True


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
        entries, now = [], self._now() if rows else 0.0
        for raw_id, fields in rows:
            try:
                entries.append(parse(raw_id, fields, now))
            except (ValueError, KeyError) as error:
                log.error("dropped a malformed entry %r: %r", raw_id, error)
        return Read([raw_id for raw_id, _ in rows], entries, caught_up, now)

    def _now(self) -> float:
        seconds, microseconds = self._redis.time()
        return float(seconds) + microseconds / 1e6
