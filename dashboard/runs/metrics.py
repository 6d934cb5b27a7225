"""Reads metric series from packed chunks: merged over attempts, thinned to a chart's width without hiding spikes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from django.db.models import Case, F, QuerySet, When

from dashboard.runs.models import Run, SeriesChunk
from parallel_core.analysis.stats import Stats, summarise
from parallel_core.analysis.thin import thin
from parallel_core.observe.records import POINT
from parallel_core.spec import RunSpec


@dataclass(frozen=True)
class Series:
    """`shown` of `total` points; step i4, time (unix seconds) f8, value f8, all of length `shown`."""

    step: np.ndarray
    time: np.ndarray
    value: np.ndarray
    shown: int
    total: int


def series(run: Run, name: str, rank: int = 0, buckets: int = 0, since_step: int = -1) -> Series:
    """Points with step > `since_step`. From its first step on, a later attempt's points replace the earlier ones.

    `buckets` > 0 divides the points into that many parts and keeps the least, greatest and last of each (and NaNs), so
    at most about three points a bucket; 0 keeps all.
    """
    chunks = SeriesChunk.objects.filter(attempt__run=run, name=name, rank=rank)
    points = _merged(chunks, since_step)
    points = points[points["step"] > since_step]
    kept = points[thin(points["value"], buckets)] if 0 < buckets * 3 < len(points) else points
    return Series(kept["step"], kept["time"], kept["value"], len(kept), len(points))


def by_rank(run: Run, name: str, ranks: int) -> list[list[float]]:
    """The values of a series for each of ranks 0 .. `ranks` - 1, at the steps for which all of them have a point."""
    each = [series(run, name, rank) for rank in range(ranks)]
    common = reduce(np.intersect1d, (one.step for one in each))
    return [one.value[np.isin(one.step, common)].tolist() for one in each]


def _merged(chunks: QuerySet[SeriesChunk], since_step: int) -> np.ndarray:
    """The points of all attempts; each later attempt replaces the earlier ones from its first step on."""
    # The first step of a later attempt is needed even if its early chunks are not.
    firsts: dict[int, int] = {}
    rows: list[tuple[int, Any]] = []
    wanted = Case(When(last_step__gt=since_step, then=F("data")), default=None)
    fields = ("attempt__number", "first_step", "wanted")
    for number, first, data in chunks.order_by("attempt__number", "id").annotate(wanted=wanted).values_list(*fields):
        firsts[number] = min(first, firsts.get(number, first))
        if data is not None:
            rows.append((number, data))
    parts = []
    for number, data in rows:
        points = np.frombuffer(bytes(data), POINT)
        later = [first for other, first in firsts.items() if other > number]
        parts.append(points[points["step"] < min(later)] if later else points)
    return np.concatenate(parts) if parts else np.empty(0, POINT)


def timed_values(run: Run, name: str = "step_time") -> np.ndarray:
    """A series of rank 0 in the timed steps: without warm-up, also after a resume, and without the metered extra step
    after the last."""
    spec = RunSpec.stored(run.spec)
    points = series(run, name)
    timed = (points.step >= spec.train.warmup_steps) & (points.step < spec.train.steps)
    for begins in run.attempts.values_list("begins", flat=True):
        first = begins.get("step") or 0
        warm_until = min(first + spec.train.warmup_steps, spec.train.steps - 1)
        timed &= (points.step < first) | (points.step >= warm_until)
    return points.value[timed]


def timed(run: Run) -> Stats | None:
    """Statistics of the timed steps' seconds so far; None before the first."""
    values = timed_values(run)
    return summarise(values) if len(values) else None
