"""The list of runs: which match, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import F, Q, QuerySet

from dashboard.numbers import number
from dashboard.runs.models import Run
from dashboard.runs.tag_lookups import tag_contains, tag_is


@dataclass(frozen=True)
class Filters:
    """Filters of the runs list; an empty one matches all.

    `states`: any of these; `strategy`: a run's label; `sort`: a key of SORTS, descending with `-` in front.
    """

    q: str = ""
    states: tuple[str, ...] = ()
    owner: str = ""
    strategy: str = ""
    tag: str = ""
    study: int | None = None
    sort: str = "-id"


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
    "step_time": "step_time",
    "tokens_per_s": "tokens_per_s",
    "memory": "memory_peak",
}

_ALWAYS = ("id", "name", "state", "owner", "strategy", "devices", "created")
"""Sorts by columns that every row has: without a place for rows that lack one, an index can give the order."""


def list_runs(filters: Filters = Filters()) -> QuerySet[Run]:
    """Runs that match, in the order of `filters.sort`; rows without a value come last."""
    runs = Run.objects.select_related("owner", "study")
    if filters.q:
        matches = Q(name__icontains=filters.q) | Q(label__icontains=filters.q) | Q(tag_contains(filters.q))
        if (pk := number(filters.q)) is not None:
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
    return runs.order_by(*_order(filters.sort))


def _order(sort: str) -> tuple[Any, ...]:
    name = sort.lstrip("-") if sort.lstrip("-") in SORTS else "id"
    column, last = F(SORTS[name]), None if name in _ALWAYS else True
    first = column.desc(nulls_last=last) if sort.startswith("-") else column.asc(nulls_last=last)
    return (first, "-pk")
