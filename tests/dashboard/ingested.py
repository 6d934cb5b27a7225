"""What the tests of the controller's ingest share: an attempt of two ranks, and the steps that a series of it has."""

from __future__ import annotations

from typing import Any

from dashboard.fleet.models import Worker
from dashboard.runs import selectors, services, states
from dashboard.runs.models import Attempt, Run
from tests.dashboard.fake_worker import spec


def on_both_devices(owner: Any) -> Attempt:
    """An attempt that runs on both devices of yard-a."""
    run = services.submit(owner=owner, spec=spec(dp=2))
    nodes = [{"worker": "yard-a", "devices": [0, 1], "first_rank": 0, "address": "host-a"}]
    attempt = states.place(run, nodes, Worker.objects.create(name="yard-a", boot="boot-1"))
    states.running(attempt)
    return attempt


def steps(attempt: Attempt, name: str = "loss", rank: int = 0) -> list[int]:
    run = Run.objects.get(pk=attempt.run_id)
    return [int(step) for step in selectors.series(run, name, rank).step]
