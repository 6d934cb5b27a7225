"""Exports are sent while they are generated: none is in memory completely."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client

from dashboard.streaming import BLOCK, streamed
from tests.dashboard import factory


def test_a_block_is_made_once_the_one_before_is_sent() -> None:
    made = 0

    def pieces() -> Iterator[str]:
        nonlocal made
        for _ in range(8):
            made += 1
            yield "é" * (BLOCK // 4)

    async def read() -> list[tuple[int, int]]:
        return [(len(block), made) async for block in streamed(pieces())]

    assert async_to_sync(read)() == [(BLOCK, 2), (BLOCK, 4), (BLOCK, 6), (BLOCK, 8)]


def test_what_is_left_is_sent_and_nothing_is_nothing() -> None:
    async def read(pieces: list[bytes]) -> list[bytes]:
        return [block async for block in streamed(pieces)]

    assert async_to_sync(read)([b"a", b"", b"b"]) == [b"ab"]
    assert async_to_sync(read)([]) == []


@pytest.mark.usefixtures("redis_url")
def test_every_export_of_a_run_is_streamed(reader: Client, alice: Any) -> None:
    """Under ASGI, Django collects a synchronous iterator before it sends the first byte."""
    run = factory.finished(alice, {"dp": 2})
    parts = ("part/series-csv", "data/series.json", "trace/10/chrome", "trace/10/chrome-gz", "trace/10/csv")
    for address in (*(f"/runs/{run.pk}/{part}" for part in parts), f"/api/v1/runs/{run.pk}/chrome"):
        answer: Any = reader.get(address)
        assert answer.status_code == 200 and answer.streaming and answer.is_async, address
