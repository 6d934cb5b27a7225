"""The live stream as a server process sends it: to whom, after a lost connection, and at the end of the server."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator

import pytest
import redis

from dashboard.live import announce
from dashboard.yard.home import Home
from tests.dashboard.site import DEADLINE_S, Site, next_message
from workers.contract import LIVE

PLAIN = "text/plain; charset=utf-8"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, broker_url: str) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("s"), broker_url)
    yield site
    site.close()


def test_nobody_listens_without_signing_in(site: Site) -> None:
    async def main() -> None:
        async with site.open("runs", signed_in=False) as response:
            assert response.status_code == 401 and response.headers["content-type"] == PLAIN
        async with site.open("secrets") as response:
            assert response.status_code == 400 and response.headers["content-type"] == PLAIN

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


def test_the_health_of_the_web_is_answered_under_asgi(site: Site) -> None:
    async def main() -> None:
        answer = await site.get("/healthz")
        assert (answer.status_code, answer.text, answer.headers["cache-control"]) == (200, "ok\n", "no-store")

    asyncio.run(main())


def move(site: Site, state: str) -> None:
    """Changes the state of run 1 and announces it, as the controller does."""
    write(site, f"UPDATE runs_run SET state = '{state}' WHERE id = 1")
    announce.publish(1, None, ["state"])


def write(site: Site, statement: str) -> None:
    """Changes the database of the site."""
    with sqlite3.connect(Home(site.folder).database) as database:
        database.execute(statement)
    database.close()


def test_who_waits_for_a_run_is_answered_when_its_state_changes(site: Site, redis_url: str) -> None:
    """It would wait a minute, but the client only half of one: an answer is due to the change."""

    async def told(wait: int) -> str:
        answer = await site.get(f"/api/v1/runs/1?wait={wait}")
        assert answer.status_code == 200, answer.text
        return str(answer.json()["data"]["state"])

    async def main() -> None:
        assert await told(1) == "queued", "nothing changes"
        for state in ("starting", "running", "succeeded"):
            async with site.open("run:1") as response:
                await next_message(response.aiter_lines())  # news arrive
                waiting = [asyncio.create_task(told(60)) for _ in range(3)]
                done, _ = await asyncio.wait(waiting, timeout=1.0)
                assert not done, "the state is the same"
                announce.publish(1, None, ["points"])
                done, _ = await asyncio.wait(waiting, timeout=0.5)
                assert not done, "points are no change of the state"
                move(site, state)
                assert await asyncio.gather(*waiting) == [state] * 3
        assert await told(60) == "succeeded", "a run that has ended is not waited for"
        assert (await site.get("/api/v1/runs/2?wait=60")).status_code == 404
        assert (await site.get("/api/v1/runs/1?wait=61")).status_code == 422

    asyncio.run(main())


def test_that_a_run_has_ended_is_told_with_its_summary(site: Site, redis_url: str) -> None:
    """The controller computes it a moment after the end; who reads the numbers of the run then needs them."""
    empty = (
        "INSERT INTO runs_attempt VALUES (1, 1, '', '[]', 1, '', '', '', '{}', '{}'" + ", NULL" * 5 + ", 0, '{}', 0, 1)"
    )

    async def main() -> None:
        write(site, empty)
        move(site, "running")
        async with site.open("run:1") as response:
            await next_message(response.aiter_lines())  # news arrive
            waiting = asyncio.create_task(site.get("/api/v1/runs/1?wait=60"))
            done, _ = await asyncio.wait([waiting], timeout=1.0)
            move(site, "succeeded")
            late = asyncio.create_task(site.get("/api/v1/runs/1?wait=60"))
            done, _ = await asyncio.wait([waiting, late], timeout=1.0)
            assert not done, "it has ended, and is not summarised"
            write(site, """UPDATE runs_run SET summary = '{"timed": null}' WHERE id = 1""")
            announce.publish(1, None, ["summary"])
            for answer in await asyncio.gather(waiting, late):
                told = answer.json()["data"]
                assert told["state"] == "succeeded" and told["summary"] == {"timed": None}
        again = await site.get("/api/v1/runs/1?wait=60")
        assert again.json()["data"]["summary"], "it has its summary and is not waited for"

    asyncio.run(main())


def test_the_server_ends_with_streams_open_and_answers_who_waits(site: Site, redis_url: str) -> None:
    move(site, "running")

    async def main() -> None:
        waiting = asyncio.create_task(site.get("/api/v1/runs/1?wait=60"))
        async with site.open("fleet") as response:
            lines = response.aiter_lines()
            await next_message(lines)
            await asyncio.wait([waiting], timeout=1.0)
            site.process.terminate()
            while (await next_message(lines)).get("event") != "bye":
                pass  # news of `move` may come first; a stream that ends without a word raises
        assert (await waiting).json()["data"]["state"] == "running"

    asyncio.run(main())
    assert site.process.wait(DEADLINE_S) in (0, -15)
    assert redis.Redis.from_url(redis_url).xlen(LIVE) == 1  # what `move` announced
