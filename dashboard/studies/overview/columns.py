"""The table of all numbers: which columns have any value, and in which order its rows stand, which `?sort=` says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from django.http import HttpRequest
from django.utils.safestring import SafeString, mark_safe

from dashboard.studies.overview.few_rows import Few, few_of
from dashboard.studies.overview.names import in_order
from dashboard.studies.overview.rows import Row

BESIDE = math.inf
"""The value of a cell that has words instead of a number."""
Value = Callable[[Row], float | None]


class Column(NamedTuple):
    """A column of numbers; `key` is its name in ?sort= and in table.html. A first click on its heading has the least
    values first, or, of what should be high, the greatest."""

    key: str
    title: str
    value: Value
    least_first: bool = True
    beside_baseline: bool = False
    """Whether it says something only of other runs than the baseline."""


def _of_result(name: str) -> Value:
    return lambda row: getattr(row.entry.result, name) if row.entry.result else None


def _step(row: Row) -> float | None:
    return row.entry.result.step.median if row.entry.result else None


def _speedup(row: Row) -> float | None:
    return row.entry.speed.ratio if row.entry.speed and row.alike else None


def _loss(row: Row) -> float | None:
    return BESIDE if row.run.diverged else row.run.loss


def _difference(row: Row) -> float | None:
    if row.parity is None:
        return None
    return row.parity.largest if row.parity.steps else BESIDE


COLUMNS = (
    Column("step", "Step", _step),
    Column("speedup", "Speedup", _speedup, least_first=False),
    Column("ideal", "Of ideal", lambda row: row.entry.of_ideal, least_first=False, beside_baseline=True),
    Column("mfu", "MFU", lambda row: row.meters.get("mfu"), least_first=False),
    Column("hfu", "HFU", lambda row: row.meters.get("hfu"), least_first=False),
    Column("memory", "Memory", _of_result("memory_total")),
    Column("bubble", "Bubble", lambda row: row.entry.bubble),
    Column("communication", "Communication", lambda row: row.entry.communication),
    Column("loss", "Loss", _loss),
    Column("held_out", "Lowest held-out loss", lambda row: row.held_out),
    Column("differs", "Loss differs", _difference),
)
WORDS: Mapping[str, Callable[[Row], Any]] = {
    "run": lambda row: in_order(row.entry.name),
    "state": lambda row: str(row.run.get_state_display()),
}
"""The columns of words by their key -> what their rows are sorted by."""


def with_values(rows: Iterable[Row]) -> list[Column]:
    """The columns in which any of the rows has something: an empty one only takes room."""
    measured = [row for row in rows if not row.unmeasured]
    others = [row for row in measured if not row.entry.baseline]
    return [
        column
        for column in COLUMNS
        if any(column.value(row) is not None for row in (others if column.beside_baseline else measured))
    ]


class Header(NamedTuple):
    """A heading: where a click leads (`sort`, None for the order of the charts), and its `aria-sort`."""

    key: str
    title: str
    numeric: bool
    sort: str | None
    aria: str


@dataclass(frozen=True)
class Table:
    """Its columns of numbers, which of the runs it has rows for, and by which column they are sorted: a key, with a
    minus if the greatest are first; '' in the order of the charts."""

    columns: Sequence[Column]
    few: Few
    sort: str = ""

    @cached_property
    def shown(self) -> dict[str, bool]:
        """By key of a column of numbers that is shown."""
        return {column.key: True for column in self.columns}

    @cached_property
    def blank(self) -> SafeString:
        """The cells of a run without numbers."""
        return mark_safe('<td class="num"></td>' * len(self.columns))

    def headers(self) -> Iterator[Header]:
        """The headings of all columns."""
        for key in WORDS:
            yield self._header(key, key.capitalize(), numeric=False, least_first=True)
        for column in self.columns:
            yield self._header(column.key, column.title, numeric=True, least_first=column.least_first)

    def _header(self, key: str, title: str, *, numeric: bool, least_first: bool) -> Header:
        """The first click sorts, the second turns the order, the third leads back to that of the charts."""
        steps = [key, f"-{key}"] if least_first else [f"-{key}", key]
        at = steps.index(self.sort) + 1 if self.sort in steps else 0
        aria = {key: "ascending", f"-{key}": "descending"}.get(self.sort, "none")
        return Header(key, title, numeric, [*steps, None][at], aria)


def table_of(request: HttpRequest, few: Few, said: Iterable[str]) -> Table:
    """The table of the page that shows `few` and says `said`. In another order its few rows begin with the first of
    that."""
    columns = with_values(few.whole.rows)
    asked = request.GET.get("sort", "")
    key = asked.removeprefix("-")
    value = next((column.value for column in columns if column.key == key), None)
    if value is None and key not in WORDS:
        return Table(columns, few)
    rows = _by_value(few.whole.rows, value, asked != key) if value else _by_words(few.whole.rows, key, asked != key)
    return Table(columns, few_of(request, replace(few.whole, rows=rows), said), asked)


def _by_value(rows: Sequence[Row], value: Value, down: bool) -> list[Row]:
    """What has no number is last in both orders, and before it what has not succeeded: its steps may be few."""
    found = [(value(row), row) for row in rows]
    known = [(number, row) for number, row in found if number is not None and math.isfinite(number)]
    known.sort(key=lambda one: (not one[1].entry.done, -one[0] if down else one[0]))
    listed = {row.run.pk for _, row in known}
    return [*(row for _, row in known), *(row for row in rows if row.run.pk not in listed)]


def _by_words(rows: Sequence[Row], key: str, down: bool) -> list[Row]:
    return sorted(rows, key=WORDS[key], reverse=down)
