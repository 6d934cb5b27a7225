"""Which steps of a run were traced, and the choice among them that a page offers.

A long run has a hundred thousand traced steps: pages ask for a step and its neighbours, never for the whole list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, QuerySet, Subquery

from dashboard.runs.models import Run, SpanChunk

NEWEST = 100
"""How many of the newest steps are offered."""
BESIDE = 50
"""How many steps on each side of the shown one are offered."""


@dataclass(frozen=True)
class StepChoice:
    """`steps` are those offered, ascending, of `total`; `shown` is one of them, None where there is none.

    `asked` = the step asked for where it was not traced; then the newest one is shown.
    """

    steps: list[int]
    total: int
    shown: int | None = None
    before: int | None = None
    behind: int | None = None
    asked: int | None = None

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
    below, here = _down(found.filter(step__lt=at), BESIDE), _down(found.filter(step=at), 1)
    above = list(found.filter(step__gt=at).order_by("step").values_list("step", flat=True).distinct()[:BESIDE])
    total = len(newest)
    if total == NEWEST:
        total = found.order_by().aggregate(total=Count("step", distinct=True))["total"]
    return _offered(newest[::-1], below[::-1], here, above, total=total, asked=None if here else at)


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
    every = SpanChunk.objects.filter(attempt__run=run).order_by("-attempt__number")
    return SpanChunk.objects.filter(attempt_id=Subquery(every.values("attempt_id")[:1]))


def traced_from(run: Run) -> int:
    """The step that the attempt of `traced_steps` began with: more than 0 of one that went on from a checkpoint."""
    newest = SpanChunk.objects.filter(attempt__run=run).order_by("-attempt__number")
    begins: dict[str, Any] = newest.values_list("attempt__begins", flat=True).first() or {}
    return int(begins.get("step") or 0)
