"""Chart of the bytes that the CUDA allocator had handed out over one step, with the peak marked."""

from __future__ import annotations

from typing import Any

import numpy as np

from dashboard.charts import theme
from dashboard.charts.chart import Chart
from dashboard.charts.theme import var
from parallel_core.analysis.allocations import Allocations
from parallel_core.analysis.downsample import thin
from parallel_core.analysis.quantities import bytes_text, count_text, step_text

MIB = 1 << 20
MOST_POINTS = 600
"""Buckets to which a long curve is thinned: the least, greatest and last value of each are drawn."""
COLUMNS = ("", "bytes", "ms from the first event")


def chart(found: Allocations, step: int, rank: int) -> Chart:
    kept = thin(found.bytes.astype(float), MOST_POINTS) if len(found.us) > 3 * MOST_POINTS else np.arange(len(found.us))
    ms, last = found.us / 1e3, found.us[-1] / 1e3
    layout = theme.layout(280, hovermode="closest")
    layout["xaxis"] = theme.axis("ms from the first event of the step", range=[0, last or 1], zeroline=False)
    layout["yaxis"] = theme.axis("MiB", rangemode="tozero", fixedrange=True)
    curve = {
        "type": "scatter",
        "mode": "lines",
        "x": np.round(ms[kept], 4).tolist(),
        "y": np.round(found.bytes[kept] / MIB, 4).tolist(),
        "line": {"color": var("memory-activations"), "width": 1.5, "shape": "hv"},
        "fill": "tozeroy",
        "hovertemplate": "%{y:.2f} MiB at %{x:.3f} ms<extra></extra>",
    }
    before, over = bytes_text(found.before), bytes_text(found.peak - found.before)
    title = f"{bytes_text(found.peak)} at most: {before} from before the step and {over} on top."
    subtitle = "Bytes asked of the CUDA allocator and not yet freed, MiB; the dot is the peak"
    part = f", {count_text(len(kept))} of them drawn" if len(kept) < len(found.us) else ""
    source = f"measured, {step_text(step)}, rank {rank}: {count_text(len(found.us))} allocations and frees{part}"
    figure = {"data": [curve, _peak(found)], "layout": layout}
    return Chart("allocations", title, subtitle, source, figure, COLUMNS, _rows(found))


def _peak(found: Allocations) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [found.peak_us / 1e3],
        "y": [found.peak / MIB],
        "marker": {"color": var("ink"), "size": 9},
        "hovertemplate": f"peak {bytes_text(found.peak)}<extra></extra>",
    }


def _rows(found: Allocations) -> list[list[str]]:
    end = found.us[-1] / 1e3
    return [
        ["before", bytes_text(found.before, zeros=True), ""],
        ["peak", bytes_text(found.peak, zeros=True), f"{found.peak_us / 1e3:.3f}"],
        ["end", bytes_text(int(found.bytes[-1]), zeros=True), f"{end:.3f}"],
        ["added by rounding, at the end", bytes_text(found.rounded, zeros=True), f"{end:.3f}"],
    ]
