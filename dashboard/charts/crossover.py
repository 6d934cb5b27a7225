"""Speedup of tensor and pipeline parallelism along one variable: predicted lines, measured dots, the crossover."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from dashboard.charts import theme
from dashboard.charts.chart import Chart
from dashboard.charts.theme import line_of, var
from parallel_core.analysis.quantities import count_text, plural_text, significant
from parallel_core.plan.crossover import AROUND, Along, CrossoverCase, flip

POINTS = 61
ROWS = 7
"""The most predicted rows of a table."""
CLOSE = 0.08
"""As a part of the chart's height: the names of lines whose ends are closer than this would overlap."""
FAMILIES = ("tp", "pp")
WORDS: dict[Along, tuple[str, str, float]] = {
    "hidden": ("width", "hidden size", 1.0),
    "bandwidth": ("link", "link bandwidth, GB/s", 1e9),
    "micro_batches": ("micro-batches", "micro-batches of a step", 1.0),
}
"""Along -> (word, axis title, size of the axis's unit in the unit of `CrossoverCase`)."""


class Dot(NamedTuple):
    """A measured run of the yard: family tp or pp, position in the axis's unit, speedup over its run on one device, and
    what else it does otherwise than the case."""

    name: str
    family: str
    x: float
    speedup: float
    note: str = ""

    @property
    def row(self) -> list[str]:
        """Its row in the table of the chart."""
        measured = ["", ""]
        measured[FAMILIES.index(self.family)] = significant(self.speedup, zeros=True)
        return [count_text(round(self.x)), *measured, ", ".join(filter(None, ("measured", self.name, self.note)))]


def chart(case: CrossoverCase, along: Along, dots: Sequence[Dot]) -> Chart:
    """Covers a factor of AROUND below and above the case's own value, as far as there are such micro-batches."""
    _, axis, unit = WORDS[along]
    middle = float(getattr(case, along))
    low = middle / AROUND if along == "bandwidth" else max(1.0, middle / AROUND)
    high = min(middle * AROUND, case.batch) if along == "micro_batches" else middle * AROUND
    values = _grid(along, low, high, POINTS)
    lines = dict(zip(FAMILIES, _speedups(case, along, values), strict=True))
    highest = 1.1 * max([*lines["tp"], *lines["pp"], *(dot.speedup for dot in dots)])
    data = [*_lines(values / unit, lines, highest)]
    data += [_dots(family, [dot for dot in dots if dot.family == family]) for family in FAMILIES]
    turn = flip(case, along)
    if turn is not None and values[0] <= turn <= values[-1]:
        data.append(_mark(turn / unit, highest))
    listed = _grid(along, low, high, ROWS)
    predicted = zip(listed, *_speedups(case, along, listed), strict=True)
    rows = [
        [_at(along, x), significant(tp, zeros=True), significant(pp, zeros=True), "predicted"]
        for x, tp, pp in predicted
    ]
    rows += [dot.row for dot in dots]
    subtitle = f"Speedup against {axis}; lines predicted; measured: circles TP, diamonds PP; dashed: the flip"
    source = f"closed form, {case.devices} devices; {plural_text(len(dots), 'run')} of this yard"
    figure = {"data": [one for one in data if one["x"]], "layout": _layout(axis, values / unit, highest)}
    return Chart(f"along-{along}", title(case, along), subtitle, source, figure, (axis, "TP", "PP", ""), rows)


def _grid(along: Along, low: float, high: float, count: int) -> np.ndarray:
    """About so many values of a measure, even on a logarithmic axis; no model has half a unit, and no step half a
    micro-batch."""
    values = np.geomspace(low, high, count)
    return values if along == "bandwidth" else np.unique(np.rint(values))


def _at(along: Along, x: float) -> str:
    """A value of a measure in a table, in the unit of its axis."""
    return significant(x / WORDS[along][2]) if along == "bandwidth" else count_text(round(x))


def _speedups(case: CrossoverCase, along: Along, values: np.ndarray) -> tuple[list[float], list[float]]:
    """Those of tensor ranks and of a pipeline at each value of the measure."""
    cases = [case.at(along, float(x)) for x in values]
    return [one.tensor() for one in cases], [one.pipeline() for one in cases]


def _layout(axis: str, x: np.ndarray, highest: float) -> dict[str, Any]:
    layout = theme.layout(
        320,
        xaxis=theme.log_axis(axis, x[0], x[-1]),
        yaxis=theme.axis("times as fast as one device", range=[0, highest]),
        hovermode="closest",
    )
    return layout | {"meta": {"narrow": {"xaxis": theme.narrow_log_axis(layout["xaxis"])}}}


def title(case: CrossoverCase, along: Along) -> str:
    """Says where the faster strategy changes, or which one is faster throughout."""
    ahead = "TP" if case.tensor() > case.pipeline() else "PP"
    turn = flip(case, along)
    if turn is None:
        return f"{ahead} is faster at any {WORDS[along][0]}."
    beyond = case.at(along, turn * 1.01)
    then = "TP" if beyond.tensor() > beyond.pipeline() else "PP"
    return f"{then} is faster from {_value(case, along, turn)} on; here {ahead} is."


def _value(case: CrossoverCase, along: Along, turn: float) -> str:
    """The crossover in words, rounded up to where the other strategy is ahead, but not beyond the batch."""
    if along == "bandwidth":
        return f"{significant(turn / WORDS[along][2])} GB/s"
    whole = ceil(turn) if turn < 1000 else ceil(turn / 100) * 100
    if along == "micro_batches":
        return f"{count_text(min(whole, case.batch))} micro-batches"
    return f"width {count_text(whole)}"


def _side(end: float, lower: float, close: bool) -> str:
    """Plotly's text position for a line's name: after its end, and away from the other name if the ends are close."""
    return "middle right" if not close else "bottom right" if end == lower else "top right"


def _lines(x: np.ndarray, lines: Mapping[str, Sequence[float]], highest: float) -> Iterator[dict[str, Any]]:
    """The line of each family, with its name at its end; the chart is `highest` high."""
    ends = {family: speedups[-1] for family, speedups in lines.items()}
    close = abs(ends["tp"] - ends["pp"]) < CLOSE * highest
    for family, speedups in lines.items():
        yield _line(family, x, speedups, _side(ends[family], min(ends.values()), close))


def _line(family: str, x: Any, y: Sequence[float], side: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+text",
        "name": family.upper(),
        "text": [*[""] * (len(y) - 1), f" {family.upper()}"],
        "textposition": side,
        "textfont": {"color": line_of(family), "size": 14},
        "x": x.tolist(),
        "y": list(y),
        "line": {"color": line_of(family), "width": 2.5},
        "cliponaxis": False,
        "hovertemplate": f"{family.upper()}: %{{y:.3g}} times at %{{x:.3g}}<extra></extra>",
    }


def _dots(family: str, dots: Sequence[Dot]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{family.upper()}, measured",
        "x": [dot.x for dot in dots],
        "y": [dot.speedup for dot in dots],
        "marker": {"color": line_of(family), "size": 10, "symbol": "circle" if family == "tp" else "diamond"},
        "customdata": [theme.escape_label(dot.name) for dot in dots],
        "hovertemplate": "%{customdata}<br>%{y:.3g} times at %{x:.3g}, measured<extra></extra>",
    }


def _mark(x: float, height: float) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "flip",
        "x": [x, x],
        "y": [0, height],
        "line": {"color": var("ink-2"), "dash": "dash", "width": 1.5},
        "hoverinfo": "skip",
    }
