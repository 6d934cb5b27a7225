"""Runs that time the links between hosts, and what they report."""

from __future__ import annotations

from typing import Any

from dashboard.fleet.models import Worker
from dashboard.runs import linking, states
from dashboard.runs.models import Attempt, Run, State
from parallel_core.observe.record_files import encode
from tests.dashboard import factory


def line(what: str, alpha: float, beta: float) -> dict[str, Any]:
    sizes = [1024, 1 << 24]
    found = {"what": what, "ranks": 2, "hosts": 2}
    found["time"] = {"sizes": sizes, "seconds": [alpha + beta * size for size in sizes]}
    return found


def told(links: list[dict[str, Any]], device: str = "cpu") -> bytes:
    return encode({"kind": "links", "rank": 0, "t": 1.0, "software": "torch 9", "device": device, "links": links})


def started(run: Run) -> Attempt:
    nodes = [
        {"worker": name, "devices": [0, 1], "first_rank": 2 * i, "address": "x"} for i, name in enumerate(run.between)
    ]
    return states.place(run, nodes, Worker.objects.get(name=run.between[0]))


def timed(owner: Any, alpha: float = 1e-3, beta: float = 1e-9) -> Run:
    """A finished run that timed the link between both hosts."""
    run = linking.submit(owner=owner, first="yard-b", second="yard-a")
    factory.feed(started(run), 0, told([line(what, alpha, beta) for what in ("send", "all_reduce")]))
    factory.end(run, State.SUCCEEDED)
    return run
