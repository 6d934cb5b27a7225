"""The bars of the fleet's timeline: which attempt held devices from when to when, in percent of the window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from html import escape
from typing import Any, NamedTuple

from django.db.models.fields.json import KeyTextTransform
from django.urls import reverse

from dashboard.ages import clock
from dashboard.runs.models import Attempt, Run
from dashboard.studies.models import Study

LEAST = 0.3
"""Width of the shortest bar, in percent of the window."""


class Drawn(NamedTuple):
    """What is read of an attempt and its run, in the order of COLUMNS: two hundred instances of each, with every
    column, would take most of the time of the page."""

    run: int
    name: str
    injected: list[Any]
    number: int
    devices: list[dict[str, Any]]
    sent: datetime | None
    started: datetime | None
    ended: datetime | None
    ends: tuple[bool, str, str, str, str, str | None]
    """How it stands, in the order of ENDS."""
    device: str | None

    @property
    def kind(self) -> str:
        """As `selectors.kind_of` its run."""
        return self.device or "cpu"

    def held(self) -> Iterator[tuple[str, int]]:
        """The worker and the index of each of its devices."""
        return ((node["worker"], index) for node in self.devices for index in node["devices"])

    @property
    def devices_text(self) -> str:
        """Its devices in words: "yard-a cpu 0, 1"."""
        each = (f"{node['worker']} {self.kind} {', '.join(map(str, node['devices']))}" for node in self.devices)
        return "; ".join(each)


COLUMNS = ("run", "run__name", "run__injected", "number", "devices", "sent_at", "started_at", "ended_at")
ENDS = ("over", "outcome", "cause", "run__state", "run__cause", "run__study__kind")


@dataclass(frozen=True)
class Bar:
    """`look` and `state` = the look and text of the attempt's badge; `left` and `width` in percent of the window;
    `idle` = percent of the bar before the attempt's processes had started; `begin` and `end` as `ages.clock` says them.

    `end` is "now" while the run holds the device.
    """

    attempt: Drawn
    look: str
    state: str
    left: float
    width: float
    idle: float
    words: str
    begin: str
    end: str
    href: str

    @cached_property
    def markup(self) -> str:
        """The bar as HTML."""
        place = f"left:{self.left:.2f}%;width:{self.width:.2f}%"
        hatched = f'<i class="held" style="width:{self.idle:.1f}%"></i>' if self.idle >= 1 else ""
        return (
            f'<a class="bar" tabindex="-1" data-state="{escape(self.look)}" href="{escape(self.href)}" style="{place}"'
            f' title="{escape(self.words)}">{hatched}<span>{escape(self.attempt.name)}</span></a>'
        )


def bars(attempts: Sequence[int], since: datetime, now: datetime) -> list[tuple[Drawn, Bar]]:
    """Those of these attempts that held devices after `since`, with their bars; newest first."""
    device = KeyTextTransform("device", KeyTextTransform("train", "run__spec"))
    rows = Attempt.objects.filter(pk__in=attempts).order_by("-pk").values_list(*COLUMNS, *ENDS, device)
    badges = _Badges()
    page, _, after = reverse("runs:page", args=[0]).rpartition("0")  # once: it takes a third of the time of a bar
    found = []
    for row in rows:
        last = len(COLUMNS)
        one = Drawn._make((*row[:last], row[last:-1], row[-1]))
        if one.sent is not None and (one.ended or now) > since:
            found.append((one, _bar(one, *badges[one.ends], f"{page}{one.run}{after}", since, now)))
    return found


class _Badges(dict[tuple[Any, ...], tuple[str, str]]):
    """Look and text of the badge of an attempt that stands so: there are only a few ways."""

    def __missing__(self, ends: tuple[bool, str, str, str, str, str | None]) -> tuple[str, str]:
        over, outcome, cause, state, of_run, kind = ends
        run = Run(state=state, cause=of_run, study=None if kind is None else Study(kind=kind))
        attempt = Attempt(over=over, outcome=outcome, cause=cause, run=run)
        self[ends] = attempt.look, attempt.state_text
        return self[ends]


def _bar(one: Drawn, look: str, state: str, href: str, since: datetime, now: datetime) -> Bar:
    assert one.sent is not None
    begin, end = one.sent, one.ended or now
    window = (now - since).total_seconds()
    left = max(0.0, (begin - since).total_seconds()) / window * 100
    width = max(LEAST, (end - since).total_seconds() / window * 100 - left)
    held = max(0.0, ((one.started or end) - max(begin, since)).total_seconds()) / window * 100
    began, ended = clock(begin, now), clock(one.ended, now) if one.ended else "now"
    words = f"{one.name}, attempt {one.number}: {began} to {ended}, {state.lower()}"
    left = min(left, 100 - LEAST)  # even a bar at the right edge lies inside the window
    width = min(width, 100 - left)
    return Bar(one, look, state, left, width, min(100.0, held / width * 100), words, began, ended, href)
