"""The list of runs: which match, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Case, F, Q, QuerySet, Value, When

from dashboard.numbers import number
from dashboard.runs.browse import field_terms
from dashboard.runs.browse.tag_lookups import tag_contains, tag_is
from dashboard.runs.models import Run, State


@dataclass(frozen=True)
class Filters:
    """Filters of the runs list; an empty one matches all.

    `q`: words, and terms as `field_terms` reads them; `states`: any of these; `strategy`: a run's label; made at
    `created_after` or later, and before `created_before`; `sort`: a key of SORTS, descending with `-` in front.
    """

    q: str = ""
    states: tuple[str, ...] = ()
    owner: str = ""
    strategy: str = ""
    tag: str = ""
    study: int | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    sort: str = "-id"

    @property
    def narrowed(self) -> bool:
        """Whether anything but `q` and `study` leaves runs out."""
        found = (self.states, self.owner, self.strategy, self.tag, self.created_after, self.created_before)
        return any(found)


SORTS = {
    "id": "pk",
    "name": "name",
    "state": "state",
    "owner": "owner__username",
    "model": "spec__model__kind",
    "strategy": "label",
    "devices": "devices",
    "created": "created_at",
    "started": "started_at",
    "ended": "ended_at",
    "step": "step",
    "loss": "loss",
    "held_out": "held_out",
    "step_time": "step_time",
    "tokens_per_s": "tokens_per_s",
    "memory": "memory_peak",
}

_ALWAYS = ("id", "name", "state", "owner", "strategy", "devices", "created")
"""Sorts by columns that every row has: without a place for rows that lack one, an index can give the order."""
_MEASURED = ("step_time", "tokens_per_s", "memory")
"""Sorts by what runs are measured by: one that failed or goes on may have it of a few steps alone."""


def list_runs(filters: Filters = Filters()) -> QuerySet[Run]:
    """Runs that match, in the order of `filters.sort`; rows without a value come last, and before them, in the order of
    a measure, those of runs that have not succeeded."""
    runs = Run.objects.select_related("owner", "study")
    search = field_terms.parse(filters.q)
    runs = runs.filter(*search.conditions)
    if words := search.words:
        matches = Q(tag_contains(words))
        matches |= Q(name__icontains=words) | Q(label__icontains=words) | Q(notes__icontains=words)
        if (pk := number(words)) is not None:
            matches |= Q(pk=pk)
        runs = runs.filter(matches)
    if filters.states:
        runs = runs.filter(state__in=filters.states)
    if filters.owner:
        runs = runs.filter(owner__username=filters.owner)
    if filters.strategy:
        runs = runs.filter(label=filters.strategy)
    if filters.tag:
        runs = runs.filter(tag_is(filters.tag))
    if filters.study is not None:
        runs = runs.filter(study_id=filters.study)
    if filters.created_after is not None:
        runs = runs.filter(created_at__gte=filters.created_after)
    if filters.created_before is not None:
        runs = runs.filter(created_at__lt=filters.created_before)
    return runs.order_by(*_order(filters.sort))


def _order(sort: str) -> tuple[Any, ...]:
    name = sort.lstrip("-") if sort.lstrip("-") in SORTS else "id"
    column, last = F(SORTS[name]), None if name in _ALWAYS else True
    first = column.desc(nulls_last=last) if sort.startswith("-") else column.asc(nulls_last=last)
    return (*([_placed(SORTS[name])] if name in _MEASURED else ()), first, "-pk")


def _placed(column: str) -> Case:
    return Case(
        When(**{f"{column}__isnull": True}, then=Value(2)), When(state=State.SUCCEEDED, then=Value(0)), default=1
    )
