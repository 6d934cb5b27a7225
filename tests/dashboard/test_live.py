"""The live stream: topics, fan-out, resuming, authorisation, and its end at shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
from django.test import Client

from dashboard.live import announce, views
from dashboard.live.hub import Hub, Subscription
from tests.dashboard.site import DEADLINE_S
from workers.contract import LIVE


def with_hub(url: str, body: Callable[[Hub], Awaitable[None]]) -> None:
    """Runs `body` with a hub in an event loop of its own."""

    async def main() -> None:
        hub = Hub(url)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await body(hub)
        finally:
            hub.close()

    asyncio.run(main())


async def news_of(subscription: Subscription, topic: str) -> set[str]:
    """The next update of the topic."""
    while True:
        news = await subscription.take(DEADLINE_S)
        if topic in news:
            return news[topic]


def test_each_client_gets_its_topics_alone(redis_url: str) -> None:
    async def body(hub: Hub) -> None:
        one, two = await hub.subscribe(frozenset({"run:1"})), await hub.subscribe(frozenset({"run:2", "fleet"}))
        announce.publish(1, None, ["points"])
        announce.publish(2, None, ["log"])
        assert await news_of(one, "run:1") == {"points"}
        assert await news_of(two, "run:2") == {"log"}
        announce.publish(None, None, ["fleet"])
        assert await news_of(two, "fleet") == {"fleet"}
        assert await one.take(0) == {}

    with_hub(redis_url, body)


def test_a_burst_is_told_at_once_and_together(redis_url: str) -> None:
    async def body(hub: Hub) -> None:
        subscription = await hub.subscribe(frozenset({"run:1"}))
        for i in range(200):
            announce.publish(1, None, [f"w{i}"])
        seen: set[str] = set()
        wakes = 0
        while len(seen) < 200:
            seen |= await news_of(subscription, "run:1")
            wakes += 1
        assert wakes < 20

    with_hub(redis_url, body)


def test_resuming_replays_what_was_missed(redis_url: str) -> None:
    async def body(hub: Hub) -> None:
        announce.publish(1, None, ["points"])
        first = await hub.subscribe(frozenset({"run:1"}))
        hub.unsubscribe(first)
        witness = await hub.subscribe(frozenset({"run:1"}))
        announce.publish(2, None, ["log"])
        announce.publish(1, None, ["spans"])
        assert await news_of(witness, "run:1") == {"spans"}  # the hub itself has read past it
        again = await hub.subscribe(frozenset({"run:1"}), first.position)
        assert await news_of(again, "run:1") == {"spans"}

    with_hub(redis_url, body)


def test_resuming_from_what_is_no_longer_there_fetches_everything(redis_url: str) -> None:
    async def body(hub: Hub) -> None:
        announce.publish(1, None, ["points"])
        for last_id in ("1-0", "rubbish"):
            again = await hub.subscribe(frozenset({"run:1"}), last_id)
            assert await news_of(again, "run:1") == {"*"}

    with_hub(redis_url, body)


def test_after_an_outage_everything_is_fetched(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The end of the outage is logged, too."""

    async def body(hub: Hub) -> None:
        subscription = await hub.subscribe(frozenset({"fleet"}))
        news: dict[str, set[str]] = {}
        with redis.Redis.from_url(redis_url) as client:
            while not news:  # until the reader is disconnected while it waits
                client.client_kill_filter(_type="normal", skipme=True)
                news = await subscription.take(0.2)
        assert news == {"fleet": {"*"}}

    with_hub(redis_url, body)
    assert caplog.messages[-1] == "the live stream is readable again"


def test_one_request_waits_for_a_broker_that_hangs_and_no_announcement_is_lost(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[Callable[[], None]] = []
    announcer, asked = announce.Announcer(redis_url), list[int]()
    monkeypatch.setattr(announcer, "_try_later", lambda: later.append(announcer._send_kept))
    send = announcer._send

    def hangs(entries: Any) -> None:
        asked.append(len(list(entries)))
        raise redis.TimeoutError("Timeout reading from socket")

    monkeypatch.setattr(announcer, "_send", hangs)
    for run in (1, 2, 2, 3):
        announcer.append({"run": run, "study": "", "what": "[]"})
    assert asked == [1]
    later.pop()()
    assert asked == [1, 3] and len(later) == 1
    monkeypatch.setattr(announcer, "_send", send)
    later.pop()()
    announcer.append({"run": 4, "study": "", "what": "[]"})
    assert not later
    with redis.Redis.from_url(redis_url) as client:
        found: Any = client.xrange(LIVE)
    assert [fields[b"run"] for _, fields in found] == [b"1", b"2", b"3", b"4"]


def test_a_broker_that_is_away_is_told_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens at the address; several attempts to connect log one line."""
    tries = 0

    async def body(hub: Hub) -> None:
        nonlocal tries
        asked = hub._redis.xrevrange

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal tries
            tries += 1
            return asked(*args, **kwargs)

        monkeypatch.setattr(hub._redis, "xrevrange", counted)
        while tries < 4:
            await asyncio.sleep(0.05)

    monkeypatch.setattr("dashboard.live.hub.RETRY_S", 0.05)
    with_hub("redis://127.0.0.1:1/0", body)
    assert sum("is not readable" in text for text in caplog.messages) == 1


def test_a_stream_says_whether_the_server_gets_news(
    redis_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its start, at each change, and whenever nothing else was sent for a time."""
    away = False

    async def body(hub: Hub) -> None:
        nonlocal away
        for name in ("xrevrange", "xread"):
            monkeypatch.setattr(hub._redis, name, failing(getattr(hub._redis, name)))
        stream = views._events(hub, frozenset({"fleet"}), "", "key")
        assert (await anext(stream)).endswith('event: hello\ndata: {"live": true}\n\n')
        away = True
        while "false" not in (told := await anext(stream)):
            assert told == 'event: beat\ndata: {"live": true}\n\n'
        assert told == await anext(stream) == 'event: beat\ndata: {"live": false}\n\n'
        assert not any("again" in text for text in caplog.messages), "it was tried again several times"
        begun_meanwhile = views._events(hub, frozenset({"fleet"}), "", "key")
        assert '"live": false' in await anext(begun_meanwhile)
        away = False
        while "false" in (told := await anext(stream)):
            pass
        assert told == 'event: beat\ndata: {"live": true}\n\n'
        assert '"what": ["*"]' in await anext(stream)

    def failing(asked: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def ask(*args: Any, **kwargs: Any) -> Any:
            if away:
                raise redis.ConnectionError("away")
            return await asked(*args, **kwargs)

        return ask

    monkeypatch.setattr("dashboard.live.hub.RETRY_S", 0.02)
    monkeypatch.setattr("dashboard.live.hub.BLOCK_MS", 20)
    monkeypatch.setattr(views, "KEEP_ALIVE_S", 0.2)
    with_hub(redis_url, body)


def test_closing_ends_every_stream(redis_url: str) -> None:
    async def body(hub: Hub) -> None:
        stream = views._events(hub, frozenset({"fleet"}), "", "key")
        assert (await anext(stream)).startswith("retry:")
        asyncio.get_running_loop().call_soon(hub.close)
        assert [text async for text in stream] == ['event: bye\ndata: {"why": "restart"}\n\n']
        assert not hub._by_topic

    with_hub(redis_url, body)


def test_a_client_that_goes_away_leaves_no_subscription(redis_url: str) -> None:
    """While missed entries are fetched, before the first message is sent, and during the stream."""
    topics = frozenset({"run:1", "fleet"})

    async def body(hub: Hub) -> None:
        await hub._ready.wait()
        asked = asyncio.ensure_future(hub.subscribe(topics, "1-0"))
        while not hub._by_topic:
            await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert not hub._by_topic
        never_begun = views._events(hub, topics, "", "key")
        assert not hub._by_topic
        await never_begun.aclose()
        stream = views._events(hub, topics, "", "key")
        await anext(stream)
        assert set(hub._by_topic) == topics
        await stream.aclose()
        assert not hub._by_topic

    with_hub(redis_url, body)


def test_a_session_that_ended_ends_its_stream(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "AUTHORISE_S", 0.0)
    monkeypatch.setattr(views, "_still_authorised", lambda key: False)

    async def body(hub: Hub) -> None:
        told = [text async for text in views._events(hub, frozenset({"fleet"}), "", "key")]
        assert told[1:] == ['event: bye\ndata: {"why": "signed-out"}\n\n']

    with_hub(redis_url, body)


@pytest.mark.django_db(transaction=True)  # the view closes its connection, which would end a test's transaction
def test_who_is_still_authorised(client: Client, bob: Any) -> None:
    client.force_login(bob)
    key = client.session.session_key
    assert key is not None
    assert views._still_authorised(key)
    bob.is_active = False
    bob.save()
    assert not views._still_authorised(key)
    bob.is_active = True
    bob.save()
    client.logout()
    assert not views._still_authorised(key)


def test_only_the_last_message_carries_the_id() -> None:
    text = views.messages({"run:1": {"log"}, "runs": {"state", "points"}}, "5-0")
    first, second = text.strip().split("\n\n")
    assert first == 'data: {"topic": "run:1", "what": ["log"]}'
    assert second == 'id: 5-0\ndata: {"topic": "runs", "what": ["points", "state"]}'
