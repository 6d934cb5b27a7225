"""Scatter of predicted choices in two measures; those that no other beats in both are filled and joined by a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboard.charts import theme
from dashboard.charts.theme import Figure, var


class Point(NamedTuple):
    """One choice; `best` if no other is better in both measures."""

    label: str
    x: float
    y: float
    best: bool


def figure(points: Sequence[Point], x_title: str, y_title: str, units: tuple[str, str]) -> Figure:
    """The scatter; `units` (of x and y) follow the numbers in the hover text."""
    best = sorted((point for point in points if point.best), key=lambda point: point.x)
    line: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "hoverinfo": "skip",
        "line": {"color": var("ink-2"), "dash": "dot"},
        "x": [point.x for point in best],
        "y": [point.y for point in best],
    }
    widest = 1.06 * max((point.x for point in points), default=1.0)
    layout = theme.layout(
        360,
        xaxis=theme.axis(x_title, range=[0, widest]),
        yaxis=theme.axis(y_title, rangemode="tozero"),
        hovermode="closest",
    )
    return {"data": [line, _dots(points, units)], "layout": layout}


def _dots(points: Sequence[Point], units: tuple[str, str]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [point.x for point in points],
        "y": [point.y for point in points],
        "cliponaxis": False,  # points on an axis are drawn whole
        "marker": {
            "symbol": ["circle" if point.best else "circle-open" for point in points],
            "size": 9,
            "color": var("accent"),
        },
        "customdata": [theme.escape_label(point.label) for point in points],
        "hovertemplate": f"%{{customdata}}<br>%{{x:.3g}} {units[0]}, %{{y:.3g}} {units[1]}<extra></extra>",
    }
