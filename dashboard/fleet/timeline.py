"""Devices x time: which run held which device when, as shares of the window, for bars that need no chart library."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Q
from django.utils import timezone

from dashboard.fleet.selectors import WorkerView, kind_of
from dashboard.runs.models import Attempt, Run

HOURS = (1, 6, 24)
MAX_BARS = 400
"""Newest attempts drawn; the timeline says "N of M" where there are more."""
LEAST = 0.3
"""Percent of the window that even the shortest bar fills."""


@dataclass(frozen=True)
class Bar:
    """`left` and `width` in percent of the window; `idle` = percent of the bar before its processes had started.

    `end` is None while the run holds the device.
    """

    run: Run
    left: float
    width: float
    idle: float
    words: str
    attempt: int
    begin: datetime
    end: datetime | None


@dataclass
class Row:
    """One device."""

    worker: str
    index: int
    kind: str
    bars: list[Bar] = field(default_factory=list)


@dataclass(frozen=True)
class Timeline:
    """`ticks` = (percent, clock time)."""

    rows: list[Row]
    ticks: list[tuple[float, datetime]]
    shown: int
    total: int


def timeline(workers: list[WorkerView], hours: int, now: datetime | None = None) -> Timeline:
    """The last `hours` of every device of `workers`."""
    now = now or timezone.now()
    since = now - timedelta(hours=hours)
    rows = {(w.worker.name, d.kind, d.index): Row(w.worker.name, d.index, d.kind) for w in workers for d in w.devices}
    attempts = Attempt.objects.filter(Q(ended_at__gte=since) | Q(over=False), sent_at__isnull=False)
    total = attempts.count()
    drawn = list(attempts.select_related("run").order_by("-pk")[:MAX_BARS])
    for attempt in reversed(drawn):
        bar = _bar(attempt, since, now)
        for node in attempt.devices:
            for index in node["devices"]:
                row = rows.get((node["worker"], kind_of(attempt.run), index))
                if row and bar:
                    row.bars.append(bar)
    ticks = [(25.0 * i, since + (now - since) * i / 4) for i in range(5)]
    return Timeline(list(rows.values()), ticks, len(drawn), total)


def _bar(attempt: Attempt, since: datetime, now: datetime) -> Bar | None:
    begin, end = attempt.sent_at, attempt.ended_at or now
    if begin is None or end <= since:
        return None
    window = (now - since).total_seconds()
    left = max(0.0, (begin - since).total_seconds()) / window * 100
    width = max(LEAST, (end - since).total_seconds() / window * 100 - left)
    started = attempt.started_at or end
    held = max(0.0, (started - max(begin, since)).total_seconds()) / window * 100
    words = f"{attempt.run.name}, attempt {attempt.number}: {begin:%H:%M:%S} to {attempt.ended_at or now:%H:%M:%S}"
    left = min(left, 100 - LEAST)  # even a bar at the right edge lies inside of the window
    width = min(width, 100 - left)
    idle = min(100.0, held / width * 100)
    return Bar(attempt.run, left, width, idle, words, attempt.number, begin, attempt.ended_at)
