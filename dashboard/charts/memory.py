"""Memory of each run's worst rank by category, against the memory of a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.charts import theme
from dashboard.charts.chart import Chart, Entry, row_height, rows_said, run_column, standing, ticks
from dashboard.charts.theme import var
from parallel_core.analysis.names import CATEGORY_NAMES
from parallel_core.analysis.quantities import bytes_text
from parallel_core.observe.records import CATEGORIES

MIB = 1 << 20
FAR = 3.0
"""A limit beyond this many times the largest bar is only named in the subtitle: drawn, it would flatten every bar."""
COLUMNS = (*(CATEGORY_NAMES[c] for c in CATEGORIES), "measured", "on rank", "predicted")


def chart(entries: Sequence[Entry], title: str, source: str, limit: int | None = None) -> Chart:
    """`limit` = bytes of the device (or the cap), drawn as a line where it is near. Predictions are outlines."""
    drawn = standing(entries)
    rows = [(y, e.result.memory) for y, e in enumerate(drawn) if e.result and e.result.memory]
    expected = [(y, e.predicted) for y, e in enumerate(drawn) if e.predicted]
    largest = max([*(sum(memory.values()) for _, memory in rows), *(size for _, size in expected)], default=0)
    data = [_trace(category, rows) for category in CATEGORIES] if rows else []
    if rows and expected:
        data.append(_predicted(expected))
    near = bool(limit and largest and limit <= FAR * largest)
    if rows:
        data.append(_totals(rows, expected))
        if near and limit:
            data.append(_limit(limit, len(drawn)))
    figure = {
        "data": data,
        "layout": theme.layout(
            row_height(len(drawn)),
            barmode="stack",
            bargap=0.25,
            xaxis=theme.axis("MiB", range=[0, 1.2 * (max(largest, limit or 0) if near else largest) / MIB or 1]),
            yaxis=theme.rows_axis(ticks(drawn)),
        ),
    }
    subtitle = "Memory of the worst rank at its peak, MiB: solid measured by category, outline predicted"
    subtitle += _said(limit, near) + rows_said(entries)
    columns = (run_column(entries), *COLUMNS)
    return Chart("memory", title, subtitle, source, figure, columns, [_row(entry) for entry in entries])


def _said(limit: int | None, near: bool) -> str:
    if not limit:
        return ""
    return f"; limit {bytes_text(limit, 3)}" + ("" if near else ", far to the right")


def _trace(category: str, rows: list[tuple[int, Any]]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": CATEGORY_NAMES[category],
        "y": [y for y, _ in rows],
        "x": [memory.get(category, 0) / MIB for _, memory in rows],
        "marker": {"color": var(f"memory-{category}"), "line": {"width": 0.5, "color": var("surface")}},
        "hovertemplate": f"{CATEGORY_NAMES[category]}: %{{x:.1f}} MiB<extra></extra>",
    }


def _predicted(expected: list[tuple[int, int]]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": "predicted",
        "base": 0,  # a bar with its own base is drawn over the stack, not on top of it
        "width": 0.92,
        "y": [y for y, _ in expected],
        "x": [size / MIB for _, size in expected],
        "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 1.25, "color": var("ink-2")}},
        "hovertemplate": "predicted: %{x:.1f} MiB<extra></extra>",
    }


def _totals(rows: list[tuple[int, Any]], expected: list[tuple[int, int]]) -> dict[str, Any]:
    """The measured totals as text, after whichever of bar and outline reaches further."""
    totals = [sum(memory.values()) for _, memory in rows]
    outlines = dict(expected)
    ends = {y: max(total, outlines.get(y, 0)) for (y, _), total in zip(rows, totals, strict=True)}
    return {
        "type": "scatter",
        "mode": "text",
        "y": [y for y, _ in rows],
        "x": [ends.get(y, 0) / MIB for y, _ in rows],
        "text": [f" {bytes_text(total, zeros=True)}" for total in totals],
        "textposition": "middle right",
        "textfont": {"size": 12, "color": var("ink-2")},
        "cliponaxis": False,
        "hoverinfo": "skip",
    }


def _limit(limit: int, rows: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "limit",
        "x": [limit / MIB, limit / MIB],
        "y": [-0.6, rows - 0.4],
        "line": {"color": var("bad"), "width": 2},
        "hovertemplate": f"limit {bytes_text(limit, 3)}<extra></extra>",
    }


def _row(entry: Entry) -> list[str]:
    memory = entry.compared.memory if entry.compared else None
    expected = bytes_text(entry.predicted, zeros=True) if entry.predicted else ""
    if not memory:
        return [entry.in_table, *("" for _ in CATEGORIES), entry.state or "not metered", "", expected]
    sizes = [bytes_text(memory.get(category, 0), zeros=True) for category in CATEGORIES]
    rank = "" if entry.worst_rank is None else str(entry.worst_rank)
    return [entry.in_table, *sizes, bytes_text(sum(memory.values()), zeros=True), rank, expected]
