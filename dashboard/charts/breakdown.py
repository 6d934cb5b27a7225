"""Where the traced step goes: stacked milliseconds that add up to it, one row a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.charts import theme
from dashboard.charts.chart import Chart, Entry, row_height, rows_said, run_column, standing, ticks
from dashboard.charts.theme import var
from parallel_core.analysis import breakdown
from parallel_core.analysis.breakdown import Breakdown
from parallel_core.analysis.quantities import significant

Part = tuple[str, tuple[str, ...], str]
"""(word, fields of Breakdown, phase); fields that are None are left out."""
_COMPUTE: tuple[Part, ...] = (("forward", ("forward",), "forward"), ("backward", ("backward",), "backward"))
_UNDIVIDED: Part = ("forward and backward", ("undivided",), "backward")
_PHASES = ("recompute", "communication", "optimizer", "idle", "other")
PARTS: tuple[Part, ...] = (
    *_COMPUTE,
    _UNDIVIDED,
    *((*part, phase) for part, phase in zip(breakdown.PARTS[1:], _PHASES, strict=True)),
)
"""All parts in stacking order; together they are the step."""


def chart(entries: Sequence[Entry], title: str, source: str) -> Chart:
    """Stacked bars of `entries`, in the same order as in the speedup chart next to it."""
    drawn = standing(entries)
    rows = [(y, e.result.breakdown) for y, e in enumerate(drawn) if e.result and e.result.breakdown]
    parts = _parts([breakdown for _, breakdown in rows])
    figure = {
        "data": [*(_trace(part, rows) for part in parts), _medians(drawn)] if rows else [],
        "layout": theme.layout(
            row_height(len(drawn)),
            barmode="stack",
            bargap=0.25,
            xaxis=theme.axis("ms, mean over the ranks", rangemode="tozero"),
            yaxis=theme.rows_axis(ticks(drawn)),
            meta={"sharesRows": True},
        ),
    }
    subtitle = "Where one traced step goes, in ms: parts add up to it; tick = the run's median step"
    subtitle += rows_said(entries)
    columns = (run_column(entries), *(f"{word}, ms" for word, _, _ in parts), "traced step, ms", "median step, ms")
    return Chart("breakdown", title, subtitle, source, figure, columns, [_row(entry, parts) for entry in entries])


def _parts(breakdowns: Sequence[Breakdown]) -> Sequence[Part]:
    """The parts that these need: most have none that is undivided."""
    return PARTS if any(one.undivided is not None for one in breakdowns) else [p for p in PARTS if p is not _UNDIVIDED]


def milliseconds(breakdown: Breakdown, fields: tuple[str, ...]) -> float:
    return sum(getattr(breakdown, field) or 0 for field in fields) / 1e6


def _trace(part: Part, rows: list[tuple[int, Breakdown]]) -> dict[str, Any]:
    word, fields, phase = part
    marker: dict[str, Any] = {"color": theme.phase_fill(phase), "line": {"width": 0}}
    if phase == "idle":
        marker["pattern"] = theme.hatch("/", "phase-idle-line", 5)
        marker["line"] = {"width": 1, "color": var("phase-idle-line")}
    return {
        "type": "bar",
        "orientation": "h",
        "name": word,
        "y": [y for y, _ in rows],
        "x": [milliseconds(breakdown, fields) for _, breakdown in rows],
        "marker": marker,
        "hovertemplate": f"{word}: %{{x:.2f}} ms<extra></extra>",
    }


def _medians(entries: Sequence[Entry]) -> dict[str, Any]:
    drawn = [(y, e) for y, e in enumerate(entries) if e.compared and e.compared.breakdown]
    known = [(y, e.traced_median) for y, e in drawn if e.traced_median]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "median step",
        "y": [y for y, _ in known],
        "x": [median * 1e3 for _, median in known],
        "marker": {"symbol": "line-ns", "size": 14, "line": {"width": 2.5, "color": var("ink")}},
        "hovertemplate": "median of the timed steps: %{x:.1f} ms<extra></extra>",
    }


def _row(entry: Entry, parts: Sequence[Part]) -> list[str]:
    breakdown = entry.compared.breakdown if entry.compared else None
    median = significant(entry.traced_median * 1e3, zeros=True) if entry.traced_median else ""
    if breakdown is None:
        return [entry.in_table, *("" for _ in parts), entry.state or "not traced", median]
    cells = [significant(milliseconds(breakdown, fields), zeros=True) for _, fields, _ in parts]
    return [entry.in_table, *cells, significant(breakdown.total / 1e6, zeros=True), median]
