"""The loss series of several runs: the points that are valid, and those that a later attempt has replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from django.db.models import F, Max, Q, QuerySet
from numpy.typing import NDArray

from dashboard.runs.metrics import pause
from dashboard.runs.models import Run, SeriesChunk
from parallel_core.observe.records import POINT, SPARSE_SERIES

MOST_POINTS = 1_000_000
"""About the most points that are read for one page; of longer series, every second, fourth, eighth ... step is read."""

Points = NDArray[np.void]
"""An array of POINT rows."""


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


def losses_of(runs: Sequence[Run], name: str = "loss") -> Losses:
    """The losses of all steps of the runs, or of every n-th if they are more than MOST_POINTS; from one query. `name` =
    their series; one of SPARSE_SERIES is read whole."""
    every = (
        1
        if name in SPARSE_SERIES
        else _stride(sum(max(0, run.step + 1 - (run.resume_step or 0)) for run in runs if run.step is not None))
    )
    chunks = SeriesChunk.objects.filter(attempt__run__in=[run.pk for run in runs], name=name, rank=0)
    read = _read(chunks, every)
    held: dict[int, Points] = {}
    replaced: dict[int, Points] = {}
    for (run, _), (first, parts) in read.items():
        before, points = held.get(run, np.empty(0, POINT)), np.concatenate(parts)
        points["time"] -= pause(before, points)
        kept = before["step"] < first
        if not kept.all():
            replaced[run] = np.concatenate([replaced.get(run, np.empty(0, POINT)), before[~kept]])
        held[run] = np.concatenate([before[kept], points])
    return Losses(held, replaced, every)


def _stride(points: int) -> int:
    """The least power of 2 that leaves at most MOST_POINTS of so many points."""
    every = 1
    while points > every * MOST_POINTS:
        every *= 2
    return every


def _read(chunks: QuerySet[SeriesChunk], every: int) -> dict[tuple[int, int], tuple[int, list[Points]]]:
    """The points of every n-th step and the last of each run, by (run, number of the attempt), in this order; before
    them, the first step of the attempt's chunks that were read."""
    last = set[int]()
    if every > 1:
        last = set(chunks.order_by().values("attempt__run").annotate(last=Max("pk")).values_list("last", flat=True))
        # A chunk has a multiple of `every` if the greatest one up to its last step is not before its first.
        multiple = F("last_step") - F("last_step") % every
        chunks = chunks.annotate(multiple=multiple).filter(Q(multiple__gte=F("first_step")) | Q(pk__in=last))
    rows = chunks.order_by("attempt__run", "attempt__number", "first_step")
    fields = ("attempt__run", "attempt__number", "pk", "first_step", "data")
    out: dict[tuple[int, int], tuple[int, list[Points]]] = {}
    for run, number, pk, first, data in rows.values_list(*fields).iterator():
        points = np.frombuffer(bytes(data), POINT)
        wanted = points["step"] % every == 0
        wanted[-1] |= pk in last
        out.setdefault((run, number), (first, []))[1].append(points[wanted])
    return out
