"""The analyst's work, done in a test: the same lanes, each with real processes, one piece after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from django.test import Client

from dashboard.analyst import searching
from dashboard.analyst.process import Analyst, Lane
from dashboard.ledger import replays
from dashboard.traces import reading

DEADLINE_S = 120.0


def lane_of(module: ModuleType) -> Lane:
    return Lane(module.recover, module.take)


def finish(lane: Lane) -> None:
    """Moves on until its piece of work is done."""
    deadline = time.monotonic() + DEADLINE_S
    while lane.work is not None:
        lane.move()
        assert time.monotonic() < deadline


def read_next() -> bool:
    """Reads the oldest queued trace; False where none is queued."""
    return _next(reading)


def search_next() -> bool:
    """Answers the oldest queued search; False where none is queued."""
    return _next(searching)


def foresee_all() -> None:
    """Looks for a run to replay for every prediction that has none yet."""
    while _next(replays):
        pass


def _next(module: ModuleType) -> bool:
    lane = lane_of(module)
    moved = lane.move()
    finish(lane)
    return moved


def answered(client: Client, address: str, part: bool = False) -> Any:
    """A page that asks for a search, as it is with the answer; with `part` what a page fetches of it."""
    headers = {"HX-Request": "true"} if part else {}
    first = client.get(address, headers=headers)
    assert b"data-search=" in first.content, "it asks for nothing, or has the answer"
    assert search_next()
    return client.get(address, headers=headers)


def analyse_until(condition: Callable[[], bool]) -> None:
    """Runs an analyst, as its process does, until then."""
    deadline = time.monotonic() + DEADLINE_S

    def watch() -> None:
        assert time.monotonic() < deadline
        if condition():
            analyst.stop()

    analyst = Analyst([lane_of(searching), lane_of(reading), Lane(lambda: None, watch)])
    analyst.run()
