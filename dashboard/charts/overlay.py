"""A traced step with its plan over it: measured bars solid, planned ones outlined, the critical path as one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.charts import gantt
from dashboard.charts.chart import Chart
from dashboard.charts.gantt import FULL
from dashboard.charts.gantt_bars import Spans
from dashboard.charts.theme import var
from parallel_core.analysis.lateness import late
from parallel_core.analysis.quantities import count_text, significant
from parallel_core.analysis.rows import durations
from parallel_core.analysis.waits import Waited, step_start
from parallel_core.schedule.ir import COMPUTE, Kind

MAX_OUTLINES = 1_000
PLANNED_HEIGHT = 0.88
COLUMNS = ("rank", "operations", "on the critical path, ms", "latest, ms")


def chart(
    spans: Spans,
    joined: NDArray[np.void],
    path: NDArray[np.void],
    title: str,
    source: str,
    waited: Mapping[int, Waited] | None = None,
) -> Chart:
    """`joined` = LATE rows, `path` = LINK rows of the same step, `waited` = who waited for whom in it."""
    figure = gantt.figure(spans, waited=waited)
    rows = {rank: float(i) for i, rank in enumerate(sorted(spans))}
    work = joined[outlined(joined)]
    drawn = _longest(work)
    figure["data"] += [_outlines(drawn, rows), _line(path, rows, step_start(spans))]
    if len(work):
        reach = max(figure["layout"]["xaxis"]["range"][1], float(work["planned_end"].max()) / 1e6 * 1.005)
        figure["layout"]["xaxis"]["range"] = [0, reach]
    outlines = f"{count_text(len(drawn))} of {count_text(len(work))} planned"
    if len(drawn) < len(work):
        outlines = f"the {count_text(len(drawn))} longest of {count_text(len(work))} planned outlined"
    counted = f"{gantt.counted(figure['layout']['meta'])}, {outlines}"
    subtitle = (
        "ms from the start of the step; filled measured, outlined planned at each stage's median costs; "
        "the line is the critical path"
    )
    return Chart("overlay", title, subtitle, f"{source}; {counted}", figure, COLUMNS, _table(spans, work, path))


def outlined(joined: NDArray[np.void]) -> NDArray[np.bool_]:
    """Mask of the LATE rows drawn with their plan: those that compute. Recomputation is part of its backward, so it is
    not."""
    return np.isin(joined["kind"], [int(kind) for kind in COMPUTE - {Kind.R}])


def _longest(work: NDArray[np.void]) -> NDArray[np.void]:
    """The MAX_OUTLINES longest as measured, in their own order: those whose bars are drawn, on whichever rank."""
    order = np.argsort(-durations(work), kind="stable")
    return work[np.sort(order[:MAX_OUTLINES])]


def _outlines(work: NDArray[np.void], rows: dict[int, float]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": "planned",
        "base": (work["planned_start"] / 1e6).round(4).tolist(),
        "x": ((work["planned_end"] - work["planned_start"]) / 1e6).round(4).tolist(),
        "y": [rows[rank] for rank in work["rank"].tolist()],
        "width": [PLANNED_HEIGHT] * len(work),
        "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 1, "color": var("ink-2")}},
        "hoverinfo": "skip",
    }


def _line(path: NDArray[np.void], rows: dict[int, float], zero: int) -> dict[str, Any]:
    """The critical path along the upper edge of the bars; vertical where it changes ranks."""
    x, y = [], []
    for link in path:
        x += [(int(link["start"]) - zero) / 1e6, (int(link["end"]) - zero) / 1e6]
        y += [rows[int(link["rank"])] - FULL / 2] * 2
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "critical path",
        "x": np.round(x, 4).tolist(),
        "y": y,
        "line": {"color": var("line-tp"), "width": 3},
        "hoverinfo": "skip",
    }


def _table(spans: Spans, work: NDArray[np.void], path: NDArray[np.void]) -> list[list[str]]:
    """`work`: the rows that are drawn with their plan, which the title is of, too."""
    out = []
    for rank in sorted(spans):
        own, links = work[work["rank"] == rank], path[path["rank"] == rank]
        latest = int(late(own).max()) / 1e6 if len(own) else 0.0
        on_path = int(durations(links).sum()) / 1e6
        out.append([str(rank), str(len(own)), significant(on_path, zeros=True), significant(latest, zeros=True)])
    return out
