"""A profiled model layer by layer: time forward and backward, and bytes of activations and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.charts import theme
from dashboard.charts.chart import Chart, row_height
from dashboard.charts.theme import Figure, var
from parallel_core.analysis.quantities import bytes_text, percent_text, seconds_text
from parallel_core.plan.layer_graph import GraphLayer
from parallel_core.profile.table import LayerBytes

MIB = 1 << 20


def times(layers: Sequence[GraphLayer], of: str, source: str, others: GraphLayer | None = None) -> Chart:
    """Milliseconds of each layer for `of` ("8 samples"); `others` = the sum of further layers."""
    slowest = max(layers, key=lambda layer: layer.compute)
    layers = [*layers, *([others] if others else [])]
    total = sum(layer.compute for layer in layers)
    title = f"{seconds_text(total)} a micro-batch; {slowest.name} takes most, {percent_text(slowest.compute / total)}."
    parts = {"forward": [layer.forward for layer in layers], "backward": [layer.backward for layer in layers]}
    data = [_bars(phase, [1e3 * value for value in values], f"phase-{phase}") for phase, values in parts.items()]
    rows = [[a.name, *(seconds_text(v, zeros=True) for v in (a.forward, a.backward, a.compute))] for a in layers]
    subtitle = f"Forward and backward of {of}, ms"
    figure = _figure(data, [layer.name for layer in layers], "ms")
    return Chart("layer-times", title, subtitle, source, figure, ("layer", "forward", "backward", "both"), rows)


def sizes(layers: Sequence[LayerBytes], of: str, source: str) -> Chart:
    """MiB of activations that each layer keeps for its backward, and of its parameters."""
    kept, held = sum(layer.saved for layer in layers), sum(layer.parameters for layer in layers)
    title = f"{bytes_text(kept)} of activations are kept, {bytes_text(held)} are parameters."
    parts = {"activations": [layer.saved for layer in layers], "params": [layer.parameters for layer in layers]}
    data = [_bars(name, [value / MIB for value in values], f"memory-{name}") for name, values in parts.items()]
    rows = [[a.unit, *(bytes_text(v, zeros=True) for v in (a.saved, a.boundary, a.parameters))] for a in layers]
    columns = ("layer", "activations kept", "handed on", "parameters")
    subtitle = f"Activations kept for the backward of {of}, and parameters, MiB"
    figure = _figure(data, [layer.unit for layer in layers], "MiB")
    return Chart("layer-sizes", title, subtitle, source, figure, columns, rows)


def _bars(name: str, values: Sequence[float], fill: str) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(range(len(values))),
        "x": list(values),
        "marker": {"color": var(fill)},
        "hovertemplate": f"{name} %{{x:.3g}}<extra></extra>",
    }


def _figure(data: list[dict[str, Any]], labels: Sequence[str], unit: str) -> Figure:
    return {
        "data": data,
        "layout": theme.layout(
            row_height(len(labels)),
            barmode="stack",
            bargap=0.25,
            xaxis=theme.axis(unit, rangemode="tozero"),
            yaxis=theme.rows_axis([theme.escape_label(label) for label in labels]),
        ),
    }
