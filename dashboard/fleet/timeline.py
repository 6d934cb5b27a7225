"""Which run held which device when, as percentages of the window, for bars drawn without a chart library."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.urls import reverse
from django.utils import timezone

from dashboard.ages import clock
from dashboard.fleet.held import COLUMNS, Held, Hold, held
from dashboard.fleet.selectors import kind_of
from dashboard.fleet.worker_views import WorkerView
from dashboard.runs.models import Attempt, Run

HOURS = (1, 6, 24)
MAX_BARS = 200
"""The most attempts drawn, newest first; the timeline says "N of M" where there are more."""
MAX_LISTED = 50
"""The most attempts that are also in the table below it, newest first."""
TICKS = 4
"""Parts of the window between ticks."""
DRAWN = (
    *("number", "devices", "sent_at", "started_at", "ended_at", "over", "outcome", "cause"),
    *(f"run__{name}" for name in ("name", "spec", "state", "cause", "injected")),
    "run__study__kind",
)
"""What is read of each attempt and its run: the other columns would take most of the time of the page."""
LEAST = 0.3
"""Width of the shortest bar, in percent of the window."""


@dataclass(frozen=True)
class Bar:
    """`look` and `state` = the look and text of the attempt's badge; `left` and `width` in percent of the window;
    `idle` = percent of the bar before the attempt's processes had started; `begin` and `end` as `ages.clock` says them.

    `end` is "now" while the run holds the device.
    """

    run: Run
    look: str
    state: str
    left: float
    width: float
    idle: float
    words: str
    attempt: int
    begin: str
    end: str
    href: str

    @property
    def place(self) -> str:
        """Position and width of the bar as CSS."""
        return f"left:{self.left:.2f}%;width:{self.width:.2f}%"


@dataclass
class Row:
    """One device."""

    worker: str
    index: int
    kind: str
    bars: list[Bar] = field(default_factory=list)


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
    newest = Attempt.objects.filter(pk__in=found[:MAX_BARS]).order_by("-pk").select_related("run__study").only(*DRAWN)
    drawn = [(attempt, bar) for attempt in newest if (bar := _bar(attempt, since, now))]
    for attempt, bar in reversed(drawn):
        for node in attempt.devices:
            for index in node["devices"]:
                kind = kind_of(attempt.run)
                # A device that no worker lists any more was held nevertheless.
                rows.setdefault((node["worker"], kind, index), Row(node["worker"], index, kind)).bars.append(bar)
    table = [Listed(bar, _devices(attempt)) for attempt, bar in drawn[:MAX_LISTED]]
    use = held(holds.values(), len(rows), since, now, hours)
    return Timeline([rows[key] for key in sorted(rows)], _ticks(since, now), table, len(drawn), len(found), use)


def _ticks(since: datetime, now: datetime) -> list[tuple[float, str]]:
    at = [since + (now - since) * i / TICKS for i in range(TICKS + 1)]
    # A phone shows every second one, so these also say what the one between would say.
    before = [now, *(at[i - 2 if i % 2 == 0 else i - 1] for i in range(1, TICKS + 1))]
    texts = [clock(one, other, "H:i") for one, other in zip(at, before, strict=True)]
    return [(100 / TICKS * i, text.replace(" ", "\N{NO-BREAK SPACE}", 1)) for i, text in enumerate(texts)]


def _devices(attempt: Attempt) -> str:
    """The attempt's devices in words: "yard-a cpu 0, 1"."""
    kind = kind_of(attempt.run)
    return "; ".join(f"{node['worker']} {kind} {', '.join(map(str, node['devices']))}" for node in attempt.devices)


def _bar(attempt: Attempt, since: datetime, now: datetime) -> Bar | None:
    begin, end = attempt.sent_at, attempt.ended_at or now
    if begin is None or end <= since:
        return None
    window = (now - since).total_seconds()
    left = max(0.0, (begin - since).total_seconds()) / window * 100
    width = max(LEAST, (end - since).total_seconds() / window * 100 - left)
    started = attempt.started_at or end
    held = max(0.0, (started - max(begin, since)).total_seconds()) / window * 100
    began, ended = clock(begin, now), clock(attempt.ended_at, now) if attempt.ended_at else "now"
    look, state = attempt.look, attempt.state_text
    words = f"{attempt.run.name}, attempt {attempt.number}: {began} to {ended}, {state.lower()}"
    left = min(left, 100 - LEAST)  # even a bar at the right edge lies inside the window
    width = min(width, 100 - left)
    idle = min(100.0, held / width * 100)
    href = reverse("runs:page", args=[attempt.run_id])
    return Bar(attempt.run, look, state, left, width, idle, words, attempt.number, began, ended, href)
