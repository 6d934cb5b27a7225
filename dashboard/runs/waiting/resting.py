"""Runs that rest before they are tried again: the network between their hosts was interrupted. Retries that fail at
once, in connecting, would be used up before it is back.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from dashboard.runs.models import Attempt, State

WORKER_LOST = "worker_lost"
FIRST_S, MOST_S = 5, 60
"""The rest after the first such end in a row, doubled with each one more, and the longest, in seconds."""


def rest_s(run: int) -> int:
    """Seconds from the end of the run's newest attempt until it is tried again; 0 if that ended otherwise."""
    ends = Attempt.objects.filter(run=run).order_by("-number").values_list("cause", "report")
    in_a_row = 0
    for cause, report in ends:
        if cause != WORKER_LOST or not report.get("peer"):  # each of its hosts only lost the others (multi_host)
            break
        in_a_row += 1
    return min(FIRST_S << (in_a_row - 1), MOST_S) if in_a_row else 0


def until(now: datetime) -> dict[int, datetime]:
    """When the queued runs that rest at `now` may be tried again, by id."""
    recent = Attempt.objects.filter(
        ended_at__gt=now - timedelta(seconds=MOST_S), cause=WORKER_LOST, run__state=State.QUEUED
    )
    ended: dict[int, datetime] = {}
    for run, at in recent.values_list("run", "ended_at"):
        if at is not None:
            ended[run] = max(at, ended.get(run, at))
    ends = {run: at + timedelta(seconds=rest_s(run)) for run, at in ended.items()}
    return {run: at for run, at in ends.items() if now < at}


def awake(order: Sequence[int], now: datetime) -> list[int]:
    """Those of the queued runs, by id, that do not rest at `now`, in their order."""
    resting = until(now)
    return [run for run in order if run not in resting]
