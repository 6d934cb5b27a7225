"""Ways to split a model over the fleet: predicted step time against memory of the worst rank, with the Pareto line."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.charts import front as fronts
from dashboard.charts.chart import Chart
from parallel_core.analysis.quantities import bytes_text, plural_text, seconds_text
from parallel_core.searches.splits import FeasibleSplit

MIB = 1 << 20
COLUMNS = ("split", "step", "memory", "none is better in both")


def chart(able: Sequence[FeasibleSplit], source: str) -> Chart:
    """`able` = the splits that fit, fastest first."""
    points = [fronts.Point(split.name, 1e3 * split.seconds, split.memory / MIB, split.best) for split in able]
    front = [split for split in able if split.best]
    figure = fronts.figure(points, "ms a step (left is faster)", "MiB on the worst rank (down is less)", ("ms", "MiB"))
    are = f"{plural_text(len(able), 'split')} {'is' if len(front) == 1 else 'are'}"
    title = f"{len(front)} of {are} beaten by none in both time and memory."
    subtitle = "Predicted step time against worst-rank memory; dotted line: none is better in both"
    rows = [
        [
            point.label,
            seconds_text(point.x / 1e3, zeros=True),
            bytes_text(point.y * MIB, zeros=True),
            "yes" if point.best else "",
        ]
        for point in points
    ]
    return Chart("splits", title, subtitle, source, figure, COLUMNS, rows)
