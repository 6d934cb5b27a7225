"""Ways to split a model over the fleet: predicted step time against the worst rank's memory, and the Pareto line."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.charts import theme
from dashboard.charts.chart import Chart
from dashboard.charts.theme import var
from parallel_core.analysis.quantities import bytes_text, seconds_text
from parallel_core.plan.fleet import Split

MIB = 1 << 20
COLUMNS = ("split", "step", "memory", "none is better in both")


def chart(able: Sequence[Split], front: Sequence[Split], source: str) -> Chart:
    """`front` = those of `able` that nothing beats in both, fastest first."""
    points = [(split, 1e3 * (split.seconds or 0.0), split.memory / MIB) for split in able]
    best = [point for point in points if point[0] in front]
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "line": {"color": var("ink-2"), "dash": "dot"}}
    dots = {
        "type": "scatter",
        "mode": "markers",
        "x": [ms for _, ms, _ in points],
        "y": [mib for _, _, mib in points],
        "marker": {
            "symbol": ["circle" if split in front else "circle-open" for split, _, _ in points],
            "size": 9,
            "color": var("accent"),
        },
        "customdata": [theme.name(split.name) for split, _, _ in points],
        "hovertemplate": "%{customdata}<br>%{x:.3g} ms, %{y:.3g} MiB<extra></extra>",
    }
    figure = {
        "data": [{**line, "x": [ms for _, ms, _ in best], "y": [mib for _, _, mib in best]}, dots],
        "layout": theme.layout(
            360,
            xaxis=theme.axis("ms a step (left is faster)", range=[0, 1.06 * max(ms for _, ms, _ in points)]),
            yaxis=theme.axis("MiB on the worst rank (down is less)", rangemode="tozero"),
            hovermode="closest",
        ),
    }
    title = f"{len(front)} of {len(able)} splits are beaten by none in both time and memory."
    subtitle = "Predicted step time against worst-rank memory; dotted line: none is better in both"
    rows = [
        [split.name, seconds_text(ms / 1e3), bytes_text(split.memory), "yes" if split in front else ""]
        for split, ms, _ in points
    ]
    return Chart("splits", title, subtitle, source, figure, COLUMNS, rows)
