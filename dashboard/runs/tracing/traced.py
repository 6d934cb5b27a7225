"""Which steps of a run were traced, and the choice among them that a page offers.

A long run has a hundred thousand traced steps: pages ask for a step and its neighbours, never for the whole list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any

from django.db.models import Count, OuterRef, QuerySet, Subquery

from dashboard.one_look import looking, read_once
from dashboard.runs.models import Run, SpanChunk
from dashboard.runs.tracing.thinned import Thinned, thinned

NEWEST = 100
"""How many of the newest steps are offered."""
BESIDE = 50
"""How many steps on each side of the shown one are offered."""


@dataclass(frozen=True)
class StepChoice:
    """`steps` are those offered, ascending, of `total`; `shown` is one of them, None where there is none.

    `asked` = the step asked for where it was not traced; then the newest one is shown. `marks` = what is said beside
    steps of which spans were dropped. `thinned` = the older steps were dropped to free space.
    """

    steps: list[int]
    total: int
    shown: int | None = None
    before: int | None = None
    behind: int | None = None
    asked: int | None = None
    marks: Mapping[int, str] = field(default_factory=dict)
    thinned: Thinned | None = None

    @property
    def options(self) -> list[tuple[int, str]]:
        """The steps with their marks, '' without one."""
        return [(step, self.marks.get(step, "")) for step in self.steps]

    @property
    def partial(self) -> bool:
        return len(self.steps) < self.total

    @classmethod
    def among(cls, steps: Sequence[int], shown: int | None) -> StepChoice:
        """The choice among known steps, which ascend; without `shown`, the last one is shown."""
        at = steps[-1] if shown is None and steps else shown
        if at is None:
            return cls([], 0)
        low, high = bisect_left(steps, at), bisect_right(steps, at)
        near = steps[max(0, low - BESIDE) : low], steps[low:high], steps[high : high + BESIDE]
        return _offered(steps[-NEWEST:], *near, total=len(steps), asked=None if high > low else at)


def step_choice(run: Run, asked: int | None) -> StepChoice:
    """The choice among the traced steps of a run; without `asked`, the newest one is shown."""
    found = spans_of_newest(run)
    newest = _down(found, NEWEST)
    at = asked if asked is not None else next(iter(newest), None)
    if at is None:
        return StepChoice([], 0)
    every = len(newest) < NEWEST
    choice = StepChoice.among(newest[::-1], at) if every else _beside(found, newest, at)
    return replace(choice, marks=_marks(run, choice.steps), thinned=thinned(run))


def _beside(found: QuerySet[SpanChunk], newest: Sequence[int], at: int) -> StepChoice:
    """The choice where there are more than the `newest` steps: those, and the ones beside `at`."""
    below, here = _down(found.filter(step__lt=at), BESIDE), _down(found.filter(step=at), 1)
    above = list(found.filter(step__gt=at).order_by("step").values_list("step", flat=True).distinct()[:BESIDE])
    total = found.order_by().aggregate(total=Count("step", distinct=True))["total"]
    return _offered(newest[::-1], below[::-1], here, above, total=total, asked=None if here else at)


def _marks(run: Run, steps: Sequence[int]) -> dict[int, str]:
    """Which of these steps have lost spans, in words."""
    dropped = spans_of_newest(run).filter(count=0, step__in=steps).order_by()
    ranks = dropped.values_list("step").annotate(ranks=Count("pk"))
    return {step: f"spans{'' if n == run.devices else f' of {n} of {run.devices} ranks'} not kept" for step, n in ranks}


def _down(found: QuerySet[SpanChunk], most: int) -> list[int]:
    """The newest steps first."""
    return list(found.order_by("-step").values_list("step", flat=True).distinct()[:most])


def _offered(
    newest: Sequence[int],
    below: Sequence[int],
    here: Sequence[int],
    above: Sequence[int],
    *,
    total: int,
    asked: int | None,
) -> StepChoice:
    """The choice among the newest steps and those beside the shown one, all ascending."""
    steps = sorted({*newest, *below, *here, *above})
    before, behind = (below[-1] if below else None), (above[0] if above else None)
    return StepChoice(steps, total, here[0] if here else None, before, behind, asked)


@read_once
def newest_traced_step(run: Run) -> int | None:
    """The newest step whose spans have arrived from every rank; if there is none yet, the newest of those that have
    any, else of all.

    Both lists are read from indices, and no further than needed: the rows of steps with spans are large."""
    newest = kept = None
    for step, ranks in ranks_with_spans(run):
        if ranks == run.devices:
            return step
        newest = step if newest is None else newest
        kept = step if kept is None and ranks else kept
    return newest if kept is None else kept


def newest_traced_steps(runs: Sequence[Run]) -> dict[int, int | None]:
    """`newest_traced_step` of several runs, from one query where their last steps are whole, as nearly always."""
    of_run = SpanChunk.objects.filter(attempt__run=OuterRef("pk")).order_by("-attempt__number", "-step")
    last = SpanChunk.objects.filter(attempt=OuterRef("traced"), step=OuterRef("newest"), count__gt=0).order_by()
    rows = (
        Run.objects.filter(pk__in=[run.pk for run in runs])
        .annotate(traced=Subquery(of_run.values("attempt")[:1]), newest=Subquery(of_run.values("step")[:1]))
        .annotate(ranks=Subquery(last.values("step").annotate(ranks=Count("pk")).values("ranks")))
    )
    known = {pk: (newest, ranks) for pk, *_, newest, ranks in rows.values_list("pk", "traced", "newest", "ranks")}
    found: dict[int, int | None] = {}
    for run in runs:
        newest, ranks = known.get(run.pk, (None, None))
        found[run.pk] = newest if newest is None or ranks == run.devices else newest_traced_step(run)
    return found


def ranks_with_spans(run: Run) -> Iterator[tuple[int, int]]:
    """(step, number of ranks whose spans of it are there) of each traced step, the newest first."""
    rows = spans_of_newest(run).order_by("-step").values_list("step", flat=True)
    there = ((step, 1) for step in rows.iterator())
    dropped = ((step, -1) for step in rows.filter(count=0).iterator())
    every = merge(there, dropped, key=itemgetter(0), reverse=True)
    for step, found in groupby(every, itemgetter(0)):
        yield step, sum(one for _, one in found)


def traced_steps(run: Run) -> list[int]:
    """Steps with spans, ascending, of the newest attempt that traced any; not those in `dropped_steps`."""
    steps = spans_of_newest(run).order_by("step").values_list("step", flat=True).distinct()
    dropped = set(dropped_steps(run))
    return [step for step in steps if step not in dropped]


def dropped_steps(run: Run) -> list[int]:
    """Steps of that attempt of which the spans of some rank were dropped, each as often as it has such ranks."""
    return list(spans_of_newest(run).filter(count=0).order_by().values_list("step", flat=True))


def was_traced(run: Run, step: int) -> bool:
    """Whether the step was traced, also if its spans were dropped."""
    return spans_of_newest(run).filter(step=step).exists()


def spans_of_newest(run: Run) -> QuerySet[SpanChunk]:
    """Spans of the newest attempt that traced any step."""
    newest = _attempts_that_traced(run)[:1]
    if not looking():
        return SpanChunk.objects.filter(attempt_id=Subquery(newest))
    return SpanChunk.objects.filter(attempt_id__in=_newest_that_traced(run))


def _attempts_that_traced(run: Run) -> QuerySet[SpanChunk, Any]:
    """The newest first."""
    every = SpanChunk.objects.filter(attempt__run=run).order_by("-attempt__number")
    return every.values_list("attempt_id", flat=True)


@read_once
def _newest_that_traced(run: Run) -> tuple[int, ...]:
    """Asked once by a page that has ten questions about its spans; () if none traced any."""
    return tuple(_attempts_that_traced(run)[:1])


def traced_from(run: Run) -> int:
    """The step that the attempt of `traced_steps` began with: more than 0 of one that went on from a checkpoint."""
    newest = SpanChunk.objects.filter(attempt__run=run).order_by("-attempt__number")
    begins: dict[str, Any] = newest.values_list("attempt__begins", flat=True).first() or {}
    return int(begins.get("step") or 0)
