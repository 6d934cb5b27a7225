"""Ways to serve a model: seconds a token against tokens a second, predicted by the roofline."""

from __future__ import annotations

from dashboard.charts import front as fronts
from dashboard.charts.chart import Chart
from parallel_core.analysis.quantities import count_text, seconds_text
from parallel_core.plan.cluster.inference import Served

COLUMNS = ("way", "a token", "tokens a second")


def chart(made: Served) -> Chart:
    """Draws those that fit; the title names the lowest latency and the highest throughput."""
    front = made.front()
    able = [i for i, fits in enumerate(made.fits.tolist()) if fits]
    points = [
        fronts.Point(made.label(i), 1e3 * float(made.token[i]), float(made.throughput[i]), i in front) for i in able
    ]
    quick, busy = front[0], front[-1]
    title = (
        f"{seconds_text(float(made.token[quick]))} a token at the quickest, "
        f"{count_text(round(float(made.throughput[busy])))} tokens a second at the most."
    )
    subtitle = (
        "Time of one token against tokens a second of all devices, over the whole answer with its prefill; "
        "dotted line: none is better in both"
    )
    figure = fronts.figure(points, "ms a token (left is quicker)", "tokens a second (up is more)", ("ms", "tokens/s"))
    rows = [
        [point.label, seconds_text(point.x / 1e3, zeros=True), count_text(round(point.y))]
        for point in sorted(points, key=lambda point: point.x)
        if point.best
    ]
    return Chart(
        "serving", title, subtitle, "predicted at the roofline, a static batch at a time", figure, COLUMNS, rows
    )
