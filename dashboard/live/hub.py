"""Reads the LIVE stream once for each web process, and passes its entries on to the process's SSE clients.

A read returns at the first entry; the next read follows COALESCE_S later and takes all entries that arrived in between.
So a single change is passed on at once, and a busy run wakes its clients at most four times a second. A client's
backlog is a set of changes for each topic, not a queue of messages: a slow client costs no memory and misses nothing.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections import defaultdict
from collections.abc import Iterable
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import redis.asyncio as redis
from django.conf import settings
from redis.exceptions import RedisError

from dashboard.live.topics import EVERYTHING, topics_of
from workers.contract import LIVE

log = logging.getLogger(__name__)

COALESCE_S = 0.25
BLOCK_MS = 1_000
READ_COUNT = 1_000
RETRY_S = 0.5
ANSWER_LIMIT_S = 5.0


class Subscription:
    """The changes that have not been sent to one client yet."""

    def __init__(self, topics: frozenset[str]) -> None:
        self.topics = topics
        self.closed = False
        self.position = ""
        """Id of an entry after which the client can resume without missing news of its topics."""
        self._news: dict[str, set[str]] = {}
        self._wake = asyncio.Event()

    def add(self, news: dict[str, set[str]], position: str) -> None:
        for topic, what in news.items():
            if topic in self.topics:
                self._news.setdefault(topic, set()).update(what)
        self.position = position
        if self._news:
            self._wake.set()

    def close(self) -> None:
        self.closed = True
        self._wake.set()

    def wake(self) -> None:
        """Makes `take` return, with or without news."""
        self._wake.set()

    async def take(self, limit: float) -> dict[str, set[str]]:
        """Waits up to `limit` seconds for news, topic -> changes; {} if there are none, or after `wake` or `close`."""
        try:
            async with asyncio.timeout(limit):
                await self._wake.wait()
        except TimeoutError:
            return {}
        self._wake.clear()
        news, self._news = self._news, {}
        return news


class Hub:
    """The reader of one event loop and its subscriptions."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(url, socket_timeout=ANSWER_LIMIT_S, socket_connect_timeout=ANSWER_LIMIT_S)
        self.readable = False
        """Whether news arrive: False from a failed read until the broker answers again."""
        self._by_topic: dict[str, set[Subscription]] = defaultdict(set)
        self._position = ""
        self._ready = asyncio.Event()
        self._closed = False
        self._task = asyncio.get_running_loop().create_task(self._read())

    async def subscribe(self, topics: frozenset[str], last_id: str = "") -> Subscription:
        """A subscription that begins after the entry `last_id`.

        If the stream no longer holds that entry, it begins now, with EVERYTHING for each topic. With an empty `last_id`
        it begins now, with nothing.
        """
        # The page's stream also opens while the broker is unreachable: news begin when it is back.
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                await self._ready.wait()
        except TimeoutError:
            log.warning("the live stream is not readable yet")
        subscription = Subscription(topics)
        subscription.position = self._position
        if self._closed:
            subscription.close()
        for topic in topics:
            self._by_topic[topic].add(subscription)
        if last_id:
            # After the registration: an entry may be sent twice, but none is missed.
            try:
                await self._replay(subscription, last_id)
            except BaseException:  # a client that disconnects cancels this; the subscription must not stay
                self.unsubscribe(subscription)
                raise
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        for topic in subscription.topics:
            self._by_topic[topic].discard(subscription)
            if not self._by_topic[topic]:
                del self._by_topic[topic]

    def close(self) -> None:
        """Ends the reader and every stream of this hub."""
        self._closed = True
        for subscription in self._subscriptions():
            subscription.close()
        self._task.cancel()

    def _subscriptions(self) -> set[Subscription]:
        return {item for group in self._by_topic.values() for item in group}

    async def _replay(self, subscription: Subscription, last_id: str) -> None:
        everything: dict[str, set[str]] = {topic: {EVERYTHING} for topic in subscription.topics}
        try:
            oldest: Any = await self._redis.xrange(LIVE, count=1)
            # The entry itself must still be there: if it was trimmed, entries after it may have been trimmed too.
            if not oldest or _key(oldest[0][0].decode()) > _key(last_id):
                news = everything
            else:
                missed: Any = await self._redis.xrange(LIVE, min=f"({last_id}", count=READ_COUNT)
                news = everything if len(missed) == READ_COUNT else _merge(topics_of(fields) for _, fields in missed)
        except (RedisError, OSError, ValueError):
            news = everything
        subscription.add(news, subscription.position or self._position)

    async def _read(self) -> None:
        interrupted = False
        while not self._closed:
            try:
                if not self.readable:
                    await self._begin()
                    if interrupted:
                        log.warning("the live stream is readable again")
                        self._tell_everything()
                    interrupted = False
                rows = _rows(await self._redis.xread({LIVE: self._position}, count=READ_COUNT, block=BLOCK_MS))
            except (RedisError, OSError) as error:
                if not interrupted:  # logged once for each outage, not for each attempt
                    log.warning("the live stream is not readable: %s", error)
                    self._interrupt()
                interrupted = True
                await asyncio.sleep(RETRY_S)
                continue
            if rows:
                self._position = rows[-1][0].decode()
                self._deliver(_merge(topics_of(fields) for _, fields in rows))
                await asyncio.sleep(COALESCE_S)

    async def _begin(self) -> None:
        """Asks the broker for the newest entry, from which the first read goes on. Raises if it does not answer."""
        newest: Any = await self._redis.xrevrange(LIVE, count=1)
        if not self._position:
            self._position = newest[0][0].decode() if newest else "0-0"
        self.readable = True
        self._ready.set()

    def _interrupt(self) -> None:
        """Wakes all clients, which must not take what they show for current."""
        self.readable = False
        for subscription in self._subscriptions():
            subscription.wake()

    def _deliver(self, news: dict[str, set[str]]) -> None:
        for subscription in {item for topic in news for item in self._by_topic.get(topic, ())}:
            subscription.add(news, self._position)

    def _tell_everything(self) -> None:
        """Delivers EVERYTHING to all clients after an outage, in which announcements may have been lost."""
        self._deliver({topic: {EVERYTHING} for topic in self._by_topic})


def _key(entry_id: str) -> tuple[int, int]:
    """Sort key of a stream id. Raises ValueError if it is not a stream id."""
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds), int(sequence or 0)


def _merge(parts: Iterable[dict[str, set[str]]]) -> dict[str, set[str]]:
    out: dict[str, set[str]] = {}
    for part in parts:
        for topic, what in part.items():
            out.setdefault(topic, set()).update(what)
    return out


def _rows(found: object) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries of an XREAD answer for one stream, in the shape of either protocol (RESP2 or RESP3)."""
    if isinstance(found, dict):
        return next(iter(found.values()), [[]])[0]
    return found[0][1] if isinstance(found, list) and found else []


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()


def hub() -> Hub:
    """The hub of the running event loop, created on first use."""
    loop = asyncio.get_running_loop()
    if loop not in _hubs:
        _hubs[loop] = Hub(settings.REDIS_URL)
        _close_on_signals(loop, _hubs[loop])
    return _hubs[loop]


def _close_on_signals(loop: asyncio.AbstractEventLoop, target: Hub) -> None:
    """Closes the hub on SIGTERM and SIGINT; the server would otherwise wait for its streams until its time limit."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        if not callable(before):
            continue

        def handle(received: int, frame: FrameType | None, before: object = before) -> None:
            loop.call_soon_threadsafe(target.close)
            if callable(before):
                before(received, frame)

        signal.signal(number, handle)
