"""A simulated schedule: its Gantt chart and, below it on the same axis, what the device that keeps most holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dashboard.charts import gantt, theme
from dashboard.charts.chart import Chart
from dashboard.charts.gantt_words import Words
from parallel_core.analysis.quantities import plural_text, significant
from parallel_core.analysis.rows import durations
from parallel_core.schedule.ir import Kind
from parallel_core.simulate.schedule_preview import UNIT, SchedulePreview

HELD_PX = 104
WORDS = Words(unit="units", axis="units of cost from the start of the step", row="device")
COLUMNS = ("device", "busy, units", "idle, units", "most activations", "most kept")
MAX_BARS = 1_500


def charts(
    previews: Sequence[SchedulePreview], titles: Sequence[str], places: Mapping[int, str] | None = None
) -> list[Chart]:
    """One chart a preview, `schedule-1` first, all with the same axis ranges; `places` = what each device holds, in
    words."""
    longest = max(made.length for made in previews) / UNIT
    most = max(max(made.kept) for made in previews)
    out = []
    for i, (made, title) in enumerate(zip(previews, titles, strict=True), 1):
        chart = _chart(f"schedule-{i}", made, title, places or {})
        chart.figure["layout"]["xaxis"]["range"] = [0, longest * 1.005]
        chart.figure["layout"]["yaxis2"]["range"] = [0, most * 1.05]
        out.append(chart)
    return out


def _chart(key: str, made: SchedulePreview, title: str, places: Mapping[int, str]) -> Chart:
    named = {rank: theme.escape_label(place) for rank, place in places.items()}
    figure = gantt.figure_of([("", made.spans)], max_bars=MAX_BARS, words=WORDS, places=named)
    gantt.below(figure, HELD_PX, "kept")
    worst = int(np.argmax(made.kept))
    figure["data"] += _curves(made, worst)
    meta = figure["layout"]["meta"]
    meta["marks"] = _marks(made)
    part = f"; the {meta['shown']} longest of {meta['total']} operations drawn" if meta["shown"] < meta["total"] else ""
    subtitle = (
        "One step in units of cost, a row for each device, numbers are micro-batches; "
        f"below: micro-batches kept on device {worst}, solid activations, grey for weight gradients"
    )
    source = f"simulated, {plural_text(made.devices, 'device')}{part}"
    return Chart(key, title, subtitle, source, figure, COLUMNS, _rows(made, places))


def _marks(made: SchedulePreview) -> list[float]:
    """The instants at which something begins, for stepping through it; the last one is the end of the step."""
    begins = np.unique(np.concatenate([rows["start"] for rows in made.spans.values()]))
    return [*(begins / UNIT).round(4).tolist(), round(made.length / UNIT, 4)]


def _curves(made: SchedulePreview, rank: int) -> list[dict[str, Any]]:
    times, forward, weights = made.held(rank)
    x = [0.0, *(times / UNIT).round(4).tolist(), made.length / UNIT]
    parts = (("activations", forward, "memory-activations"), ("for weight gradients", weights, "memory-buffers"))
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "stackgroup": "held",
            "yaxis": "y2",
            "x": x,
            "y": (counts[[-1, *range(len(counts)), -1]] / made.chunks).round(3).tolist(),  # begins with what was left
            "line": {"width": 0, "shape": "hv"},
            "fillcolor": theme.var(colour),
            "hovertemplate": f"{name}: %{{y}} micro-batches<extra></extra>",
        }
        for name, counts, colour in parts
        if counts.any()
    ]


def _rows(made: SchedulePreview, places: Mapping[int, str]) -> list[list[str]]:
    out = []
    for device, rows in sorted(made.spans.items()):
        work = rows[rows["kind"] != Kind.STEP]
        busy = int(durations(work).sum())
        sizes = (made.in_flight[device], made.kept[device])
        idle = made.length - busy
        named = f"{device} {places.get(device, '')}".strip()
        out.append([named, *(significant(value, zeros=True) for value in (busy / UNIT, idle / UNIT, *sizes))])
    return out
