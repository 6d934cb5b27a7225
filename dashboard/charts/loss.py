"""Loss (or any run series) of several runs over steps, samples or seconds, switched in the browser."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.charts import many_lines, theme
from dashboard.charts.chart import ALL, Chart, row_labels
from dashboard.json_values import finite_list
from parallel_core.analysis.downsample import Means
from parallel_core.analysis.quantities import count_text, significant

AXES = ("step", "samples", "seconds")
UNCOUNTED = "as the run from whose checkpoint it went on was deleted"
MAX_LINES = many_lines.MOST_APART
MOST_LINES = 200
"""The most lines of a chart: of more than MAX_LINES a few are coloured and named."""
HEIGHT = 320
LEGEND_ROW, LEGEND_COLUMNS = 20, 4
"""Pixels that each row of the legend adds, and how many names a row holds."""
COLUMNS = ("run", "points", "first", "last", "least")


@dataclass(frozen=True)
class Curve:
    """The line of one run: the points drawn, of `total`. Seconds count from its first point. All arrays have one
    length."""

    label: str
    step: NDArray[np.int32]
    seconds: NDArray[np.float64]
    value: NDArray[np.float64]
    total: int
    samples_per_step: int = 1
    family: str = "single"
    dashed: bool = False
    dash: str = ""
    """Plotly's dash pattern, where lines of one hue must be distinguished; '' = solid, or dashed if `dashed`."""
    role: str = ""
    """What the run stands for (a key of ROLES), where that decides hue and pattern instead of its strategy; else ''."""
    means: Means | None = None
    """What the points stand for, if they are a part of those that there are: smoothing counts all of them."""
    samples_shift: int | None = 0
    """Added to the samples of each step, for a run that went on from a checkpoint of another batch; None = not known:
    then there is no line over samples."""
    run: int | None = None
    """The run's id, where the page can mark its line."""
    baseline: bool = False
    in_table: str = ""
    """The label for the table below the chart; '' = the same."""


SYMBOLS = ("circle", "square", "diamond", "circle-open", "square-open", "diamond-open")
"""Given to the second and later lines of one hue and pattern: hues are those of families, which may have many runs."""
MARKS = 8
"""The most symbols on one line."""
ROLES = {"before": ("line-single", "solid"), "broken": ("bad", "dot"), "proof": ("good", "dash")}
"""Role -> (hue, dash pattern)."""


def drawn(curves: Sequence[Curve]) -> list[Curve]:
    """Those of which a chart shows a line: the first MOST_LINES that have points."""
    return [curve for curve in curves if len(curve.value)][:MOST_LINES]


def chart(
    curves: Sequence[Curve],
    title: str,
    source: str,
    *,
    key: str = "loss",
    unit: str = "loss",
    of: str = "runs",
    replaced: Sequence[Curve] = (),
    top: float | None = None,
    first: str = "first in the table",
) -> Chart:
    """Draws the first MOST_LINES curves that have points; of too many to be told apart the first few are coloured, and
    `first` says what these are. `layout.meta.axes` = axis -> the x values of every trace; the
    figure starts with steps. The browser smooths with a trace's `meta.mean` and `meta.count`, where it is thinned, and
    never one with `meta.whole`.

    `of` = what there is a curve for. `replaced` are points of earlier attempts that a later attempt trained again:
    drawn faint, all in one trace, the last. Where a value is more than twice `top`, the figure starts with the range
    from 0 to `top` and says how many values lie above.
    """
    lines = drawn(curves)
    many = many_lines.too_many(lines, len(set(map(_look, lines))))
    leaders = many_lines.leading(lines) if many else []
    lines = many_lines.in_drawing_order(lines) if many else lines
    older = [curve for curve in replaced if len(curve.value)]
    axes = {axis: [*(_x(curve, axis) for curve in lines), *_faint_x(older, axis)] for axis in AXES}
    names = row_labels([curve.label for curve in lines])
    plain = [_trace(curve) | {"name": name} for curve, name in zip(lines, names, strict=True)]
    made = many_lines.coloured(plain, lines, leaders) if many else _told_apart(plain)
    traces = [*made, *([_faint(older)] if older else [])]
    layout = _layout(len(leaders) or len(lines), unit, {"axes": axes})
    above = _cut(layout, lines, top) if top and _far(lines, top) else 0
    which = many_lines.words(len(lines), leaders, first) if many else ""
    of_all = f"{len(curves)} {of}" if len(lines) < len(curves) else ""
    source = f"{source}; {_counted(lines, older, of_all, above)}"
    zeros = _fractions(curves)
    rows = [_row(curve, zeros) for curve in curves]
    figure = {"data": traces, "layout": layout}
    return Chart(key, title, _subtitle(lines, unit, which), source, figure, COLUMNS, rows)


def _subtitle(lines: Sequence[Curve], unit: str, which: str) -> str:
    """What is drawn, and `which` of many lines are coloured."""
    all_of_them = "both" if len(lines) == 2 else f"all {len(lines)}"
    alike = f"{all_of_them} lines lie on one another" if _alike(lines) else ""
    return "; ".join(filter(None, (f"{unit.capitalize()} of each run", which, _patterns(lines), alike)))


def _counted(drawn: Sequence[Curve], older: Sequence[Curve], of_all: str, above: int) -> str:
    """Says how many of the points the figure shows, and of the curves where they are not `of_all`."""
    shown, total = sum(len(c.value) for c in drawn), sum(c.total for c in drawn)
    lines = f"{len(drawn)} of {of_all} drawn, " if of_all else ""
    text = f"{lines}{count_text(shown)} of {count_text(total)} points"
    if older:
        text += f"; faint: {count_text(sum(c.total for c in older))} points of earlier attempts, trained again"
    text += "".join(f"; no line of {one.label} over samples, {UNCOUNTED}" for one in drawn if one.samples_shift is None)
    return text + (f", {count_text(above)} of them above this view{ALL}" if above else "")


def _layout(lines: int, unit: str, meta: dict[str, Any]) -> dict[str, Any]:
    return theme.layout(
        HEIGHT + LEGEND_ROW * -(-lines // LEGEND_COLUMNS) if lines > 1 else HEIGHT,
        showlegend=lines > 1,
        legend=theme.legend_above(),
        xaxis=theme.axis("step", zeroline=False),
        yaxis=theme.axis(unit, zeroline=False, rangemode="normal"),
        hovermode="x unified" if lines <= 4 else "closest",
        meta=meta | {"narrow": {"legend": {"font": {"size": 10}}}},
    )


def _cut(layout: dict[str, Any], drawn: Sequence[Curve], top: float) -> int:
    """Starts the figure of this `layout` with values up to `top`, and returns how many lie above."""
    above = sum(int((curve.value > top).sum()) for curve in drawn)
    layout["yaxis"] |= {"range": [0, top], "autorange": False}
    layout["meta"]["above"] = above  # the page offers a button that shows them
    return above


def _far(drawn: Sequence[Curve], top: float) -> bool:
    """Whether some value is more than twice `top`, so that it would press the others together."""
    return any(bool((curve.value > 2 * top).any()) for curve in drawn)


def _patterns(drawn: Sequence[Curve]) -> str:
    """Says what those dots and dashes mean that are drawn; '' if there are none."""
    if any(curve.role for curve in drawn):
        return "dotted = broken, dashed = proof"
    words = ["dashed = with recomputation"] if any(curve.dashed for curve in drawn) else []
    words += ["dots and long dashes = without a flush"] if any(curve.dash for curve in drawn) else []
    return "; ".join(words)


def _alike(drawn: Sequence[Curve]) -> bool:
    """Whether all lines lie on one another: the same steps, and at each of them values within one pixel."""
    if len(drawn) < 2 or any(not np.array_equal(drawn[0].step, curve.step) for curve in drawn):
        return False
    values = np.stack([curve.value for curve in drawn])
    if not np.isfinite(values).all():
        return False
    return bool(np.ptp(values, axis=0).max() <= np.ptp(values) / HEIGHT)


def _x(curve: Curve, axis: str) -> list[float] | list[None]:
    steps = curve.step.astype(np.int64)
    if axis == "seconds":
        return np.round(curve.seconds, 3).tolist()
    if axis == "step":
        return steps.tolist()
    if curve.samples_shift is None:
        return [None] * len(steps)
    return (steps * curve.samples_per_step + curve.samples_shift).tolist()


def _faint_x(older: Sequence[Curve], axis: str) -> list[list[float | None]]:
    """The x values of the one trace of all older points, with a gap after each run; [] where there is no such trace."""
    return [[x for curve in older for x in (*_x(curve, axis), None)]] if older else []


def _faint(older: Sequence[Curve]) -> dict[str, Any]:
    values = [v for c in older for v in (*finite_list(c.value), None)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "earlier attempts",
        "x": _faint_x(older, "step")[0],
        "y": values,
        "opacity": 0.35,
        "meta": {"whole": True},
        "line": {"color": theme.var("ink-2"), "width": 1},
        "marker": {"color": theme.var("ink-2"), "size": 4},
        "hovertemplate": "an earlier attempt: %{y:.6g}<extra></extra>",
    }


def _look(curve: Curve) -> tuple[str, str]:
    """The hue and the dash pattern of the curve's line."""
    usual = f"line-{curve.family}", curve.dash or ("dash" if curve.dashed else "solid")
    return ROLES[curve.role] if curve.role else usual


def _trace(curve: Curve) -> dict[str, Any]:
    hue, dash = _look(curve)
    meta: dict[str, Any] = {} if curve.run is None else {"run": curve.run, "label": curve.label}
    meta |= _of_all(curve.means) if curve.means else {}
    return {
        "type": "scatter",
        "mode": "lines",
        "x": _x(curve, "step"),
        "y": finite_list(curve.value),
        **({"meta": meta} if meta else {}),
        "line": {"color": theme.var(hue), "width": 1.75, "dash": dash},
        "hovertemplate": f"{theme.escape_label(curve.label)}: %{{y:.6g}}<extra></extra>",
    }


def _of_all(means: Means) -> dict[str, Any]:
    return {"mean": [float(f"{mean:.6g}") for mean in means.mean.tolist()], "count": means.count.tolist()}


def _told_apart(traces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Marks lines of the same colour and dash: each after the first gets its own symbol, until SYMBOLS has no more."""
    seen: Counter[tuple[str, str]] = Counter()
    for trace in traces:
        look = trace["line"]["color"], trace["line"]["dash"]
        if 0 < seen[look] <= len(SYMBOLS):
            symbol = {"symbol": SYMBOLS[seen[look] - 1], "size": 7, "maxdisplayed": MARKS, "color": look[0]}
            trace |= {"mode": "lines+markers", "marker": symbol}
        seen[look] += 1
    return traces


def _fractions(curves: Sequence[Curve]) -> bool:
    """Whether any value is no whole number: whole ones, as of what is counted, need no zeros behind them."""
    return any(bool((np.mod(own[np.isfinite(own)], 1) > 0).any()) for own in (curve.value for curve in curves))


def _row(curve: Curve, zeros: bool) -> list[str]:
    if not len(curve.value):
        return [curve.in_table or curve.label, "0", "", "", ""]
    finite = curve.value[np.isfinite(curve.value)]
    least = significant(float(finite.min()), 6, zeros) if len(finite) else "not finite"
    ends = [significant(float(v), 6, zeros) for v in (curve.value[0], curve.value[-1])]
    return [curve.in_table or curve.label, count_text(curve.total), *ends, least]
