"""The live stream as a server process sends it: to whom, after a lost connection, and at the end of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
import redis

from dashboard.live import announce
from tests.dashboard.site import DEADLINE_S, Site, next_message
from workers.contract import LIVE


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, broker_url: str) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("s"), broker_url)
    yield site
    site.close()


def test_nobody_listens_without_signing_in(site: Site) -> None:
    async def main() -> None:
        async with site.open("runs", signed_in=False) as response:
            assert response.status_code == 401
        async with site.open("secrets") as response:
            assert response.status_code == 400

    asyncio.run(main())


def test_news_reach_the_browser_and_are_resumed_after_a_lost_connection(site: Site, redis_url: str) -> None:
    async def main() -> None:
        async with site.open("run:7,runs") as response:
            assert response.headers["content-type"] == "text/event-stream"
            lines = response.aiter_lines()
            assert (await next_message(lines))["event"] == "hello"
            announce.publish(7, None, ["log"])
            message = await next_message(lines)
            assert json.loads(message["data"]) == {"topic": "run:7", "what": ["log"]}
        announce.publish(7, None, ["spans"])
        async with site.open("run:7", resume_after=message["id"]) as response:
            lines = response.aiter_lines()
            await next_message(lines)
            assert json.loads((await next_message(lines))["data"])["what"] == ["spans"]

    asyncio.run(main())


def test_the_server_ends_with_streams_open(site: Site, redis_url: str) -> None:
    async def main() -> None:
        async with site.open("fleet") as response:
            lines = response.aiter_lines()
            await next_message(lines)
            site.process.terminate()
            assert (await next_message(lines))["event"] == "bye"

    asyncio.run(main())
    assert site.process.wait(DEADLINE_S) in (0, -15)
    assert redis.Redis.from_url(redis_url).xlen(LIVE) == 0
