"""Reads metric series from packed chunks: merged over attempts (`series_parts`), thinned to a chart's width without
hiding spikes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from django.db.models import Case, F, Min, Q, QuerySet, When

from dashboard.one_look import read_once
from dashboard.runs.models import Attempt, Run, SeriesChunk
from dashboard.runs.series_parts import Part, attempt_count, followed, joined, merged
from dashboard.runs.tracing.host_clocks import ahead
from parallel_core.analysis.downsample import Means, thin
from parallel_core.observe.records import POINT, SPARSE_SERIES

_IN_ORDER = ("attempt__number", "first_step", "id")
"""The order of the chunks of a series. It is that of the index (attempt, name, rank, first_step): ordered by id alone,
SQLite reads the chunks of all series and ranks instead."""
BETWEEN = "the time between attempts is left out"
_NEWEST_FIRST = tuple(f"-{field}" for field in _IN_ORDER)


@dataclass(frozen=True)
class Series:
    """`shown` of `total` points; step i4, time (unix seconds by the broker's clock) f8, value f8, of length `shown`.
    `means` = what they stand for where they are not all of them; `attempts` = of how many attempts they are."""

    step: np.ndarray
    time: np.ndarray
    value: np.ndarray
    shown: int
    total: int
    means: Means | None = None
    attempts: int = 1

    def times(self, scale: float) -> Series:
        """The same with values in another unit."""
        return replace(self, value=self.value * scale, means=self.means and self.means.times(scale))

    def thinned(self, buckets: int) -> Series:
        """The least, greatest and last point of each of so many parts (and NaNs): at most about three a bucket."""
        if self.shown <= 3 * buckets:
            return self
        kept = thin(self.value, buckets)
        means = Means.of(self.value, kept)
        own = {"step": self.step[kept], "time": self.time[kept], "value": self.value[kept]}
        return replace(self, **own, shown=len(kept), means=means)


def series(
    run: Run, name: str, rank: int = 0, buckets: int = 0, since_step: int = -1, *, pauses: bool = True
) -> Series:
    """Points with step > `since_step`. From its first step on, a later attempt's points replace the earlier ones.

    `buckets` > 0 thins them; 0 keeps all. Without `pauses`, times go on as if no time had passed between attempts (see
    `series_parts.pause`).
    """
    return _series(_points(run, name, rank, since_step, pauses), buckets)


@read_once
def _points(run: Run, name: str, rank: int, since_step: int, pauses: bool) -> np.ndarray:
    points = joined(_parts(run, name, rank, since_step), pauses=pauses)
    points = points[points["step"] > since_step]
    points.flags.writeable = False  # others may get the same
    return points


@read_once
def _parts(run: Run, name: str, rank: int, since_step: int) -> list[Part]:
    return _merged(_chunks(run, name, rank), ahead(run, rank), since_step, _begun(run, name))[0]


def series_and_replaced(
    run: Run, name: str, rank: int = 0, buckets: int = 0, *, pauses: bool = True
) -> tuple[Series, list[Series]]:
    """The series of a rank, and of each earlier attempt the points that a later one replaced, if there are any.
    `pauses` as in `series`."""
    parts, replaced = _merged(_chunks(run, name, rank), ahead(run, rank), begun=_begun(run, name))
    points, older = followed(parts, replaced, pauses=pauses)
    found = replace(_series(points, buckets), attempts=attempt_count(parts))
    return found, [_series(one, buckets) for one in older.values()]


class _Head(NamedTuple):
    """A chunk without its points."""

    pk: int
    attempt: int
    first: int
    last: int
    points: int


def grown(run: Run, name: str, rank: int, step: int, *, pauses: bool = True) -> tuple[Series, list[Series]]:
    """`series_and_replaced`, read without most of the chunks up to `step`: the first and the newest point, all after
    `step`, and some before it; of what was replaced some points. `total` counts those left out, too."""
    chunks = _chunks(run, name, rank)
    begun = _begun(run, name)
    heads, own, ends = _heads(chunks, begun)
    read = {head.pk for group in own.values() for head in (group[0], group[-1])}
    read |= {head.pk for head in heads if head.first < ends[head.attempt] <= head.last}  # replaced in part
    wanted = chunks.filter(Q(pk__in=read) | Q(last_step__gt=step))
    parts, replaced = _merged(wanted, ahead(run, rank), begun=begun)
    held, over = 0, Counter[int]()
    for head in heads:
        if head.pk in read or head.last > step:
            continue
        if head.last < ends[head.attempt]:
            held += head.points
        else:
            over[head.attempt] += head.points
    points, moved = followed(parts, replaced, pauses=pauses)
    older = [_series(own, 0, over[number]) for number, own in moved.items()]
    return replace(_series(points, 0, held), attempts=attempt_count(parts)), older


def first_after(run: Run, name: str, rank: int, step: int, limit: int) -> Series:
    """The first `limit` points with a step > `step`, as `series` has them; `total` counts all of these points. Chunks
    behind them are not read."""
    chunks = _chunks(run, name, rank)
    begun = _begun(run, name)
    heads, own, ends = _heads(chunks, begun)
    read, wanted, unread = {group[0].pk for group in own.values()}, limit, 0
    for head in heads:
        if head.last <= step or head.first >= ends[head.attempt]:
            continue
        if not step < head.first <= head.last < ends[head.attempt]:
            read.add(head.pk)  # only some of its points count, so which must be seen
        elif wanted > 0:
            read.add(head.pk)
            wanted -= head.points
        elif head.pk not in read:
            unread += head.points
    parts, _ = _merged(chunks.filter(pk__in=read), ahead(run, rank), step, begun)
    points = joined(parts)
    found = _series(points[points["step"] > step], 0, unread)
    shown = min(limit, found.shown)
    return Series(found.step[:limit], found.time[:limit], found.value[:limit], shown, found.total)


def _heads(
    chunks: QuerySet[SeriesChunk], begun: Mapping[int, int]
) -> tuple[list[_Head], dict[int, list[_Head]], dict[int, float]]:
    """The chunks of a series without their points: in order, by attempt, and by attempt the step from which on a later
    one replaces its points (infinity: none does). `begun` as in `_merged`."""
    fields = ("pk", "attempt__number", "first_step", "last_step", "count")
    heads = [_Head(*row) for row in chunks.order_by(*_IN_ORDER).values_list(*fields)]
    own = {number: list(group) for number, group in groupby(heads, attrgetter("attempt"))}
    firsts = {**begun, **{number: min(group[0].first, begun.get(number, math.inf)) for number, group in own.items()}}
    ends = {
        number: min((first for later, first in firsts.items() if later > number), default=math.inf) for number in own
    }
    return heads, own, ends


def after(points: Series, step: int) -> Series:
    """The points after a step."""
    kept = points.step > step
    count = int(kept.sum())
    return Series(points.step[kept], points.time[kept], points.value[kept], count, count)


def _chunks(run: Run, name: str, rank: int) -> QuerySet[SeriesChunk]:
    return SeriesChunk.objects.filter(attempt__run=run, name=name, rank=rank)


def _begun(run: Run, name: str) -> dict[int, int]:
    """For a series that has points in a few steps alone, the first step of each attempt that has come to one, by its
    number: what comes from there on replaces earlier points before there is a new one. {} for other series."""
    if name not in SPARSE_SERIES:
        return {}
    found = SeriesChunk.objects.filter(attempt__run=run, name="loss", rank=0).order_by()
    return dict(found.values_list("attempt__number").annotate(Min("first_step")))


def _series(points: np.ndarray, buckets: int, unread: int = 0) -> Series:
    """Of these points, and so many that were not read."""
    every = Series(points["step"], points["time"], points["value"], len(points), len(points) + unread)
    return every.thinned(buckets) if buckets > 0 else every


def newest(run: Run, name: str) -> float | None:
    """The value of the last point of rank 0's series, without reading the points before it; None if it has none."""
    chunks = SeriesChunk.objects.filter(attempt__run=run, name=name, rank=0)
    data = chunks.order_by(*_NEWEST_FIRST).values_list("data", flat=True).first()
    return float(np.frombuffer(bytes(data), POINT)["value"][-1]) if data else None


def beginnings(run: Run, names: Iterable[str], ranks: Iterable[int] = (0,)) -> dict[tuple[str, int], str]:
    """For each of these series by name and rank: the newest attempt that has points of it, and the first step of these,
    as `2:20`; of held-out losses, those of the loss.

    While this stays the same, points are only added; when it changes, later points have replaced earlier ones.
    """
    wanted = set(names)
    sparse = wanted.intersection(SPARSE_SERIES)
    read = wanted | {"loss"} if sparse else wanted
    found = SeriesChunk.objects.filter(attempt__run=run, name__in=read, rank__in=set(ranks))
    rows = found.order_by("attempt__number").values_list("name", "rank", "attempt__number")
    begun = {(name, rank): f"{number}:{first}" for name, rank, number, first in rows.annotate(first=Min("first_step"))}
    begun |= {(name, 0): begun["loss", 0] for name in sparse if ("loss", 0) in begun}
    return {key: at for key, at in begun.items() if key[0] in wanted}


def by_rank(run: Run, name: str, ranks: int) -> list[list[float]]:
    """The values of a series for each of ranks 0 .. `ranks` - 1, at the steps for which all of them have a point."""
    each = [series(run, name, rank) for rank in range(ranks)]
    common = reduce(np.intersect1d, (one.step for one in each))
    return [one.value[np.isin(one.step, common)].tolist() for one in each]


def left_out(runs: Iterable[Run]) -> str:
    """For the source of a chart of seconds: says that pauses are not counted, if any of the runs had one; else ''."""
    retried = Attempt.objects.filter(run__in=[run.pk for run in runs], number__gt=1).exists()
    return f"; {BETWEEN}" if retried else ""


def _merged(
    chunks: QuerySet[SeriesChunk],
    early: Mapping[int, float],
    since_step: int = -1,
    begun: Mapping[int, int] = MappingProxyType({}),
) -> tuple[list[Part], dict[int, np.ndarray]]:
    """`merged` of a series, without its chunks up to `since_step`."""
    # The first step of a later attempt is needed even if its early chunks are not.
    wanted = Case(When(last_step__gt=since_step, then=F("data")), default=None)
    fields = ("attempt__number", "first_step", "wanted")
    return merged(chunks.order_by(*_IN_ORDER).annotate(wanted=wanted).values_list(*fields), early, begun)


def parts_of(run: Run, name: str, rank: int = 0) -> list[Part]:
    """The points of a series that hold, i.e. that no later attempt has replaced, with the attempts that they are of."""
    return _parts(run, name, rank, -1)


def attempts_with(run: Run, name: str, rank: int = 0) -> set[int]:
    """The numbers of the attempts whose points of a series hold, i.e. that no later attempt has replaced."""
    return {number for number, own in parts_of(run, name, rank) if len(own)}


def last_until(run: Run, attempt: int, name: str, rank: int, step: int) -> float | None:
    """The last value of a series in the attempt of this number up to `step`; None if there is none."""
    chunks = _chunks(run, name, rank).filter(attempt__number=attempt, first_step__lte=step)
    data = chunks.order_by(*_NEWEST_FIRST).values_list("data", flat=True).first()
    points = np.frombuffer(bytes(data or b""), POINT)
    values = points["value"][points["step"] <= step]
    return float(values[-1]) if len(values) else None
