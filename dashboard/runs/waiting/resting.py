"""Runs that are tried again, and those of them that rest before: the network between their hosts was interrupted, or a
process of theirs was killed. Retries that fail at once would be used up before the network is back, or memory on a host
that kills what takes too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from dashboard.runs.models import Attempt, State

WORKER_LOST, KILLED = "worker_lost", "killed_by_signal"
RETRIED = frozenset({WORKER_LOST, KILLED})
"""Causes of an end that use a retry where one is left: something outside of the run ended it."""
FIRST_S, MOST_S = 5, 60
"""The rest after the first such end in a row, doubled with each one more, and the longest, in seconds."""


class Rest(NamedTuple):
    """When a run may be tried again at the earliest, and the cause of the end that it rests after."""

    until: datetime
    cause: str


def rest_s(run: int) -> int:
    """Seconds from the end of the run's newest attempt until it is tried again; 0 if that ended otherwise."""
    ends = Attempt.objects.filter(run=run).order_by("-number").values_list("cause", "report")
    in_a_row = 0
    for cause, report in ends:
        if not _rests_after(cause, report):
            break
        in_a_row += 1
    return min(FIRST_S << (in_a_row - 1), MOST_S) if in_a_row else 0


def _rests_after(cause: str, report: dict[str, Any]) -> bool:
    """Whether it was killed, or each of its hosts only lost the others (multi_host)."""
    return cause == KILLED or (cause == WORKER_LOST and bool(report.get("peer")))


def rests(now: datetime) -> dict[int, Rest]:
    """The queued runs that rest at `now`, by id. None for longer than MOST_S: a later end is one by a clock that was
    set back since."""
    recent = Attempt.objects.filter(
        ended_at__gt=now - timedelta(seconds=MOST_S), cause__in=RETRIED, run__state=State.QUEUED
    )
    last = {run: (at, cause) for run, at, cause in recent.order_by("number").values_list("run", "ended_at", "cause")}
    found = {run: Rest(at + timedelta(seconds=rest_s(run)), cause) for run, (at, cause) in last.items() if at}
    longest = now + timedelta(seconds=MOST_S)
    return {run: rest for run, rest in found.items() if now < rest.until <= longest}


def awake(order: Sequence[int], now: datetime) -> list[int]:
    """Those of the queued runs, by id, that do not rest at `now`, in their order."""
    resting = rests(now)
    return [run for run in order if run not in resting]
