"""Which run held which device when, as percentages of the window, for bars drawn without a chart library."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.safestring import SafeString

from dashboard.ages import clock
from dashboard.fleet.bars import Bar, bars
from dashboard.fleet.held import COLUMNS, Held, Hold, held
from dashboard.fleet.worker_views import WorkerView
from dashboard.runs.models import Attempt

HOURS = (1, 6, 24)
MAX_BARS = 200
"""The most attempts drawn, newest first; the timeline says "N of M" where there are more."""
MAX_LISTED = 50
"""The most attempts that are also in the table below it, newest first."""
TICKS = 4
"""Parts of the window between ticks."""


@dataclass
class Row:
    """One device."""

    worker: str
    index: int
    kind: str
    bars: list[Bar] = field(default_factory=list)

    @property
    def markup(self) -> SafeString:
        """The bars as HTML: a template would take as long for them as for the rest of the page."""
        return SafeString("".join(bar.markup for bar in self.bars))


@dataclass(frozen=True)
class Listed:
    """One attempt in the table: its bar, and the devices it held in words."""

    bar: Bar
    devices: str


@dataclass(frozen=True)
class Timeline:
    """`ticks` = (percent, time of day, with the day where it is another than that of a tick before, at first than
    today). `table` = newest attempts first."""

    rows: list[Row]
    ticks: list[tuple[float, str]]
    table: list[Listed]
    shown: int
    total: int
    use: Held


def timeline(workers: list[WorkerView], hours: int, now: datetime | None = None) -> Timeline:
    """The last `hours` of every device of `workers`, and of those that were held in them and are not listed now."""
    now = now or timezone.now()
    since = now - timedelta(hours=hours)
    rows = {(w.worker.name, d.kind, d.index): Row(w.worker.name, d.index, d.kind) for w in workers for d in w.every}
    attempts = Attempt.objects.filter(sent_at__isnull=False).order_by()
    # Each from its own index: joined by OR, SQLite reads every attempt ever made.
    ended, holding = attempts.filter(ended_at__gte=since), attempts.filter(over=False)
    holds = {pk: Hold(*rest) for each in (ended, holding) for pk, *rest in each.values_list("pk", *COLUMNS)}
    found = sorted(holds, reverse=True)
    drawn = bars(found[:MAX_BARS], since, now)
    for attempt, bar in reversed(drawn):
        for worker, index in attempt.held():
            # A device that no worker lists any more was held nevertheless.
            rows.setdefault((worker, attempt.kind, index), Row(worker, index, attempt.kind)).bars.append(bar)
    table = [Listed(bar, attempt.devices_text) for attempt, bar in drawn[:MAX_LISTED]]
    use = held(holds.values(), len(rows), since.timestamp(), now.timestamp(), hours)
    return Timeline([rows[key] for key in sorted(rows)], _ticks(since, now), table, len(drawn), len(found), use)


def _ticks(since: datetime, now: datetime) -> list[tuple[float, str]]:
    at = [since + (now - since) * i / TICKS for i in range(TICKS + 1)]
    # A phone shows every second one, so these also say what the one between would say.
    before = [now, *(at[i - 2 if i % 2 == 0 else i - 1] for i in range(1, TICKS + 1))]
    texts = [clock(one, other, "%H:%M") for one, other in zip(at, before, strict=True)]
    return [(100 / TICKS * i, text.replace(" ", "\N{NO-BREAK SPACE}", 1)) for i, text in enumerate(texts)]
