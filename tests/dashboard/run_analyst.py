"""Runs the analyst inside a test: the same lanes with real processes, one piece of work after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from django.test import Client
from django.utils import timezone

from dashboard.analyst import searching
from dashboard.analyst.process import Analyst, Lane
from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import reporting
from dashboard.ledger import replays
from dashboard.traces import reading

DEADLINE_S = 120.0


def lane_of(module: ModuleType) -> Lane:
    return Lane(module.recover, module.take)


def finish(lane: Lane) -> None:
    """Advances the lane until its current piece of work is done."""
    deadline = time.monotonic() + DEADLINE_S
    while lane.work is not None:
        lane.move()
        assert time.monotonic() < deadline


def read_next() -> bool:
    """Reads the oldest queued trace; returns False if none is queued."""
    return _next(reading)


def search_next() -> bool:
    """Answers the oldest queued search; returns False if none is queued."""
    return _next(searching)


def foresee_all() -> None:
    """For every prediction that has no replay yet, looks for a run to replay."""
    while _next(replays):
        pass


def _next(module: ModuleType) -> bool:
    lane = lane_of(module)
    moved = lane.move()
    finish(lane)
    return moved


def answered(client: Client, address: str, part: bool = False) -> Any:
    """Requests a page that queues a search, answers the search, and returns the page with the answer; with `part`, as
    the fragment that HTMX requests. Workers that were heard then still are: a search may take longer than a lease.
    """
    headers, heard = {"HX-Request": "true"} if part else {}, list(reporting())
    first = client.get(address, headers=headers)
    assert b"data-search=" in first.content, "the page queues no search, or already has the answer"
    assert search_next()
    for worker in heard:
        Worker.objects.filter(pk=worker.pk).update(heartbeat_at=timezone.now())
    return client.get(address, headers=headers)


def analyse_until(condition: Callable[[], bool]) -> None:
    """Runs an analyst like its own process does, until the condition is true."""
    deadline = time.monotonic() + DEADLINE_S

    def watch() -> None:
        assert time.monotonic() < deadline
        if condition():
            analyst.stop()

    analyst = Analyst([lane_of(searching), lane_of(reading), Lane(lambda: None, watch)])
    analyst.run()
