"""Ways to split a model over the fleet: predicted step time against the worst rank's memory, and the Pareto line."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.charts import front as fronts
from dashboard.charts.chart import Chart
from parallel_core.analysis.quantities import bytes_text, seconds_text
from parallel_core.plan.fleet import Split

MIB = 1 << 20
COLUMNS = ("split", "step", "memory", "none is better in both")


def chart(able: Sequence[Split], front: Sequence[Split], source: str) -> Chart:
    """`front` = those of `able` that nothing beats in both, fastest first."""
    points = [
        fronts.Point(split.name, 1e3 * (split.seconds or 0), split.memory / MIB, split in front) for split in able
    ]
    figure = fronts.figure(points, "ms a step (left is faster)", "MiB on the worst rank (down is less)", ("ms", "MiB"))
    title = f"{len(front)} of {len(able)} splits are beaten by none in both time and memory."
    subtitle = "Predicted step time against worst-rank memory; dotted line: none is better in both"
    rows = [
        [point.label, seconds_text(point.x / 1e3), bytes_text(point.y * MIB), "yes" if point.best else ""]
        for point in points
    ]
    return Chart("splits", title, subtitle, source, figure, COLUMNS, rows)
