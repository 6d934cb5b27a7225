"""Which runs the charts and the table of a page show where it has many: the first, the baseline, those under way, and
those that the text names. All others are one click away, and in the numbers of each chart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.http import HttpRequest

from dashboard.charts.chart import Chart, column_of_runs
from dashboard.runs.models import ACTIVE
from dashboard.studies.overview import figures
from dashboard.studies.overview.overviews import Overview

MOST = 20
"""Up to so many runs, all are shown."""
FIRST = 10


@dataclass(frozen=True)
class Few:
    """What a page shows of the rows of `whole`."""

    whole: Overview
    shown: Overview
    asked_all: bool = False
    """Whether all are shown only because the page's address asks for them."""

    @property
    def hidden(self) -> int:
        """The number of runs that have no row."""
        return len(self.whole.rows) - len(self.shown.rows)


def few_of(request: HttpRequest, view: Overview, said: Iterable[str]) -> Few:
    """The rows that the page shows; with `?rows=all`, or of a few runs, all. `said` = what the page says of them."""
    many = len(view.rows) > MOST
    asked_all = many and request.GET.get("rows") == "all"
    if not many or asked_all:
        return Few(view, view, asked_all)
    text = "\n".join(said)
    rows = [
        row
        for i, row in enumerate(view.rows)
        if i < FIRST or row.entry.baseline or row.run.state in ACTIVE or row.entry.label in text
    ]
    return Few(view, replace(view, rows=rows))


def listed(chart: Chart, few: Few) -> Chart:
    """The chart with the numbers of the rows that are shown alone, for a page without folded tables. Of a chart whose
    rows are no runs, all."""
    at = column_of_runs(chart.columns)
    if at is None or not few.hidden:
        return chart
    names = {
        name for row in few.shown.rows for name in (row.entry.label, row.entry.marked_in_table, row.entry.in_table)
    }
    rows = [row for row in chart.rows if row[at] in names]
    if len(rows) == len(chart.rows):
        return chart
    return replace(chart, rows=rows, source=f"{chart.source}; {len(rows)} of {len(chart.rows)} runs listed")


def cut(charts: Mapping[str, Chart | None], alike: Overview, few: Few) -> dict[str, Any]:
    """The charts of `alike` (all rows, or those of a kind) with the figures of the rows that are shown: titles and
    numbers stay those of all. None stays None."""
    if not few.hidden:
        return dict(charts)
    kept = {row.run.pk for row in few.shown.rows}
    part = figures.by_rows(replace(alike, rows=[row for row in alike.rows if row.run.pk in kept]))
    said = f"{len(few.shown.rows)} of {len(few.whole.rows)} runs drawn"
    return {
        key: replace(chart, figure=part[key].figure, source=f"{chart.source}; {said}")
        if chart and key in part
        else chart
        for key, chart in charts.items()
    }
