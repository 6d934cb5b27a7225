"""The loss series of several runs: the points that are valid, and those that a later attempt has replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from django.core.cache import caches
from django.db.models import Count, F, Max, Q, Sum
from numpy.typing import NDArray

from dashboard.runs.models import Cursor, DeadLetter, Run, SeriesChunk
from dashboard.runs.series_parts import pause
from parallel_core.observe.records import POINT

MOST_POINTS = 1_000_000
"""About the most points that are read for one page; of longer series, every second, fourth, eighth ... step is read."""

KEPT_S = 24 * 3600
MOST_KEPT = 2 << 20
"""Most bytes of the points of one run that are cached; so many are read again in some hundredths of a second."""

_NONE = np.empty(0, POINT)
Points = NDArray[np.void]
"""An array of POINT rows."""
_Read = dict[int, tuple[int, Points]]
"""The points of a run by the number of the attempt, in this order; before them the first step of the attempt's chunks
that were read."""


@dataclass(frozen=True)
class Losses:
    """Two tables by run id: the loss points that are valid, and those that a later attempt replaced.

    From its first step on, a later attempt's points replace the earlier ones; its times go on from theirs, as if no
    time had passed between attempts. Runs without replaced points are not in the second table.
    """

    held: Mapping[int, Points] = field(default_factory=dict)
    replaced: Mapping[int, Points] = field(default_factory=dict)
    every: int = 1
    """Only steps that are multiples of this are here, and the last of each run: the same steps of all runs."""

    attempts: Mapping[tuple[int, int], tuple[int, float]] = field(default_factory=dict)
    """By (run, number): the first step of the attempt's losses, and the seconds that its times were moved by."""

    def of(self, run: Run) -> Points:
        """The valid points of `run`; empty if it has none."""
        return self.held.get(run.pk, np.empty(0, POINT))

    def total(self, points: Points) -> int:
        """How many points the series has of which `points` were read: one a step."""
        return len(points) if self.every == 1 or not len(points) else int(np.ptp(points["step"])) + 1

    @property
    def part(self) -> str:
        """Says that not all losses are here; '' if they are."""
        return f"one of every {self.every} losses is read" if self.every > 1 else ""


def losses_of(runs: Sequence[Run]) -> Losses:
    """The losses of all steps of the runs, or of every n-th if they are more than MOST_POINTS; from one query, but for
    those of runs at rest that are cached."""
    every = _stride(sum(max(0, run.step + 1 - (run.resume_step or 0)) for run in runs if run.step is not None))
    held: dict[int, Points] = {}
    replaced: dict[int, Points] = {}
    attempts: dict[tuple[int, int], tuple[int, float]] = {}
    for run, own in _read(runs, "loss", every).items():
        for number, (first, points) in own.items():
            attempts[run, number] = first, pause(held.get(run, _NONE), points)
            _follow(held, replaced, run, points, *attempts[run, number])
    return Losses(held, replaced, every, attempts)


def held_out_of(runs: Sequence[Run], trained: Losses) -> Losses:
    """The held-out losses of the runs, whose losses are `trained`."""
    return series_of(runs, "eval_loss", trained)


def series_of(runs: Sequence[Run], name: str, trained: Losses) -> Losses:
    """Another series of the runs, all of its points, from one query; their losses, `trained`, say where each attempt
    begins, and when."""
    read, wanted = _read(runs, name, 1), {run.pk for run in runs}
    held: dict[int, Points] = {}
    replaced: dict[int, Points] = {}
    for (run, number), (first, seconds) in trained.attempts.items():
        if run in wanted:
            _, points = read.get(run, {}).get(number, (first, _NONE.copy()))
            _follow(held, replaced, run, points, first, seconds)
    return Losses(held, replaced)


def _follow(
    held: dict[int, Points], replaced: dict[int, Points], run: int, points: Points, first: int, seconds: float
) -> None:
    """Adds a later attempt's points, so many seconds earlier: they replace those from step `first` on."""
    before = held.get(run, _NONE)
    points["time"] -= seconds
    kept = before["step"] < first
    if not kept.all():
        replaced[run] = np.concatenate([replaced.get(run, _NONE), before[~kept]])
    held[run] = np.concatenate([before[kept], points])


def _stride(points: int) -> int:
    """The least power of 2 that leaves at most MOST_POINTS of so many points."""
    every = 1
    while points > every * MOST_POINTS:
        every *= 2
    return every


def _read(runs: Sequence[Run], name: str, every: int) -> dict[int, _Read]:
    """The points of every n-th step and the last, by run. Those of a run at rest are cached until more of it comes."""
    keys = _keys([run for run in runs if run.at_rest], name, every)
    kept = caches["large"].get_many(keys.values())
    found: dict[int, _Read] = {pk: kept[key] for pk, key in keys.items() if key in kept}
    new = _read_chunks([run.pk for run in runs if run.pk not in found], name, every)
    small = {pk: own for pk, own in new.items() if sum(points.nbytes for _, points in own.values()) <= MOST_KEPT}
    caches["large"].set_many({keys[pk]: own for pk, own in small.items() if pk in keys}, KEPT_S)
    return found | new


def _keys(runs: Sequence[Run], name: str, every: int) -> dict[int, str]:
    """A cache key for each run: another one once it was queued again, more of its files has arrived, or a record that
    was set aside was stored."""
    if not runs:
        return {}
    files = Cursor.objects.filter(attempt__run__in=runs).order_by().values_list("attempt__run")
    letters = DeadLetter.objects.filter(attempt__run__in=runs).order_by().values_list("attempt__run")
    arrived = dict(files.annotate(Sum("offset")))
    aside = dict(letters.annotate(Count("pk")))
    told = {run.pk: (run.queued_at.timestamp(), arrived.get(run.pk), aside.get(run.pk)) for run in runs}
    return {pk: ":".join(map(str, ("losses", pk, name, every, *parts))) for pk, parts in told.items()}


def _read_chunks(runs: Sequence[int], name: str, every: int) -> dict[int, _Read]:
    out: dict[int, _Read] = {run: {} for run in runs}
    if not runs:
        return out
    chunks = SeriesChunk.objects.filter(attempt__run__in=runs, name=name, rank=0)
    last = set[int]()
    if every > 1:
        last = set(chunks.order_by().values("attempt__run").annotate(last=Max("pk")).values_list("last", flat=True))
        # A chunk has a multiple of `every` if the greatest one up to its last step is not before its first.
        multiple = F("last_step") - F("last_step") % every
        chunks = chunks.annotate(multiple=multiple).filter(Q(multiple__gte=F("first_step")) | Q(pk__in=last))
    rows = chunks.order_by("attempt__run", "attempt__number", "first_step")
    fields = ("attempt__run", "attempt__number", "pk", "first_step", "data")
    parts: dict[tuple[int, int], tuple[int, list[Points]]] = {}
    for run, number, pk, first, data in rows.values_list(*fields).iterator():
        points = np.frombuffer(bytes(data), POINT)
        wanted = points["step"] % every == 0
        wanted[-1] |= pk in last
        parts.setdefault((run, number), (first, []))[1].append(points[wanted])
    for (run, number), (first, own) in parts.items():
        out[run][number] = first, np.concatenate(own)
    return out
