"""By how much the clocks of hosts differ from the broker's, as heartbeats show it: points of ranks, and of attempts, on
different hosts are drawn on one axis."""

from __future__ import annotations

import math
from typing import Any

from dashboard.runs.models import Attempt, Run
from workers.contract import LEASE_S

APART_S = 0.5
"""Smaller differences count as none: a heartbeat that is a little late looks the same."""


def note(attempt: Attempt, worker: str, said: Any, arrived: float) -> None:
    """Notes on the attempt's run that a heartbeat of the worker, sent at `said` by its host's clock, reached the broker
    at `arrived` by that one's clock.

    The first one that lists the attempt counts, because ranks never set their clock anew (observe.unix_time). A later
    one corrects it only where that one was late, and no heartbeat is later than a lease.
    """
    if not isinstance(said, int | float) or not math.isfinite(said):
        return
    ahead = said - arrived
    known = attempt.run.clocks.get(str(attempt.number), {})
    if worker in known and not APART_S <= ahead - known[worker][-1] <= LEASE_S:
        return
    shares = [node for node in attempt.devices if node["worker"] == worker]
    first = min(node["first_rank"] for node in shares)
    ranks = sum(len(node["devices"]) for node in shares)
    seconds = round(ahead, 3) if abs(ahead) >= APART_S else 0.0
    attempt.run.clocks = {**attempt.run.clocks, str(attempt.number): {**known, worker: [first, ranks, seconds]}}
    Run.objects.filter(pk=attempt.run_id).update(clocks=attempt.run.clocks)


def ahead(run: Run, rank: int) -> dict[int, float]:
    """By number of attempt, the seconds by which the clock of the rank's host was ahead of the broker's; only those
    that are known to differ."""
    out: dict[int, float] = {}
    for number, hosts in run.clocks.items():
        for first, ranks, seconds in hosts.values():
            if seconds and 0 <= rank - first < ranks:
                out[int(number)] = seconds
    return out
