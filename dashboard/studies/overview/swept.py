"""What the runs of a study reached against the fields in which they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.charts import swept
from dashboard.charts.chart import Chart
from dashboard.charts.swept_title import NOT_FINITE, Field, Quantity, Tried
from dashboard.runs.differences import flat, value_texts
from dashboard.runs.form.form_words import short_label
from dashboard.runs.form.spec_fields import ends, leaves
from dashboard.studies.new import sweepable
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.overview.rows import Row
from parallel_core.analysis.quantities import loss_text, seconds_text

KINDS = frozenset({"sweep", "listed"})
"""Kinds of studies whose runs differ in fields of their specs, each by itself."""
MOST_FIELDS = 4
LEAST_RUNS = 3
"""Of fewer runs with a result the verdict says all."""
SPLIT = frozenset({"parallel.dp", "parallel.tp", "parallel.pp", "parallel.schedule"})
"""Fields that together are a strategy: where several of them differ, none is varied by itself."""


def of_overview(kind: str, view: Overview) -> dict[str, Chart]:
    """The chart by its key; {} for other kinds, and where the runs differ in too many fields, or too few have ended."""
    if kind not in KINDS:
        return {}
    rows = [row for row in view.rows if row.alike]
    tables = {row.run.pk: flat(row.spec) for row in rows}
    found = [path for path in sweepable.fields() if len({repr(table[path]) for table in tables.values()}) > 1]
    known = sum(_value(view, row) is not None for row in rows)
    if not 1 <= len(found) <= MOST_FIELDS or len(SPLIT & set(found)) > 1 or known < LEAST_RUNS:
        return {}
    values = [_in_order([tables[row.run.pk][path] for row in rows]) for path in found]
    fields = [
        Field(short_label(path), value_texts(path, own), _are_numbers(own), _beyond(path, own))
        for path, own in zip(found, values, strict=True)
    ]
    tried = []
    for row in rows:
        places = (own.index(tables[row.run.pk][path]) for path, own in zip(found, values, strict=True))
        step = row.entry.result.step if row.entry.result and not view.ranking else None
        tried.append(Tried(row.entry.marked, tuple(places), _value(view, row), _why(row), step))
    return {"swept": swept.chart(fields, tried, _quantity(view), "measured")}


def _value(view: Overview, row: Row) -> float | None:
    """What is compared of the run: its loss where the runs train differently, else the time of a step."""
    if view.ranking:
        return view.ranking.values.get(row.run.pk)
    result = row.entry.result
    return result.step.median if row.entry.done and result and not view.side_by_side else None


def _quantity(view: Overview) -> Quantity:
    if view.ranking:
        return Quantity(view.ranking.what, loss_text)
    return Quantity("step time", lambda value: seconds_text(value, zeros=True), "ms a step", 1e3)


def _why(row: Row) -> str:
    """Why a run has no value, in a word or two."""
    lost = row.run.cause == "not_finite" or (row.entry.done and row.run.diverged)
    return NOT_FINITE if lost else str(row.run.get_state_display()).lower()


def _in_order(values: Sequence[Any]) -> list[Any]:
    """The different values: numbers by size, with nothing before them, all others as they come."""
    different = list({repr(value): value for value in values}.values())
    return (
        sorted(different, key=lambda value: (value is not None, value or 0)) if _are_numbers(different) else different
    )


def _beyond(path: str, values: Sequence[Any]) -> tuple[bool, bool]:
    """Whether the field has values before the first and after the last of these; a seed is no more one than another."""
    if path == "train.seed":
        return False, False
    low, high = ends(leaves()[path])
    return values[0] is not None and values[0] != low, values[-1] != high


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(value is None or isinstance(value, int | float) for value in values)
