"""Bars of prediction errors, one a row: solid where no constant was fitted on that row, else outlined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.charts import theme
from dashboard.charts.chart import Chart
from dashboard.charts.theme import var
from parallel_core.analysis.quantities import signed_percent_text, significant
from parallel_core.plan.cluster.accuracy import Row

SLOW = "predicted too slow"
ROOM = 1.35
"""How far the axis reaches beyond the longest bar, as a factor, to leave room for its number."""
NUMBER = 0.6
"""Room for a number on a phone, as a part of the longest left bar plus the longest right one."""


def chart(
    key: str,
    title: str,
    found: Sequence[Row],
    goal: float | None = None,
    right: str = SLOW,
    against: str = "measured",
) -> Chart:
    """`goal` = the largest error aimed at, drawn as two lines; `right` = what a positive error means; `against` = what
    the predictions are held against."""
    widest = ROOM * 100 * max([abs(row.error) for row in found] + [goal or 0, 1e-4])
    stroke = {"color": var("line-strong"), "dash": "dot"}
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "line": stroke, "y": [-0.6, len(found) - 0.4]}
    goals = [{**line, "x": [side * 100 * goal] * 2} for side in (-1, 1)] if goal else []
    layout = theme.layout(
        72 + 24 * len(found),
        xaxis=theme.axis("error, %", range=[-widest, widest], zeroline=True),
        yaxis=theme.rows_axis([theme.escape_label(row.key) for row in found]),
        bargap=0.35,
    )
    layout["meta"] = {"narrow": {"xaxis": {"range": _narrow(found, goal or 0)}}}
    figure = {"data": [_bars(found), *goals], "layout": layout}
    columns = ("row", against, "predicted", "error", "fitted on", "source")
    source = f"{against}: {'; '.join(dict.fromkeys(row.source for row in found))}; predicted by this planner"
    return Chart(key, title, _subtitle(found, goal, against, right), source, figure, columns, table(found))


def _subtitle(found: Sequence[Row], goal: float | None, against: str, right: str) -> str:
    """Says what the bars show, and `right`, for which a phone has no room at the axis; mentions outlines and the dotted
    goal only where there are some."""
    words = f"(predicted \N{MINUS SIGN} {against}) / {against}, %; right = {right}"
    words += "; outlined bars are the rows that constants were fitted on" if any(row.fitted for row in found) else ""
    return words + (f", dotted = the {100 * goal:.0f} % aimed at" if goal else "")


def _narrow(found: Sequence[Row], goal: float) -> list[float]:
    """The axis range on a phone: the numbers beyond the longest bars just fit."""
    left, right = (100 * max([0.0, *(side * row.error for row in found)]) for side in (-1, 1))
    room = NUMBER * max(left + right, 1e-2)
    return [-max(left + room, 100 * goal + 1), max(right + room, 100 * goal + 1)]


def _bars(found: Sequence[Row]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(found))),
        "x": [100 * row.error for row in found],
        "marker": {
            "color": ["rgba(0,0,0,0)" if row.fitted else var("bar") for row in found],
            "line": {"color": var("bar"), "width": 1.25},
        },
        "text": [signed_percent_text(row.error) for row in found],
        "textposition": "outside",
        "textfont": {"color": var("ink"), "size": 12},
        "customdata": [f"{significant(row.predicted)} against {significant(row.measured)} {row.unit}" for row in found],
        "hovertemplate": "%{customdata}<extra></extra>",
        "cliponaxis": False,
        "meta": {"narrow": {"textfont": {"color": var("ink"), "size": 11}}},
    }


def table(found: Sequence[Row]) -> list[list[str]]:
    return [
        [
            row.key,
            f"{significant(row.measured, 4)} {row.unit}",
            f"{significant(row.predicted, 4, zeros=True)} {row.unit}",
            signed_percent_text(row.error, 2),
            "yes" if row.fitted else "",
            row.source,
        ]
        for row in found
    ]
