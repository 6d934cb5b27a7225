"""Draws a figure as SVG, without scripts: for reports.

The figures of this package use a small part of Plotly's language: horizontal bars, lines, areas, markers and text on
linear axes of numbers, and heat maps of two colours. That part is drawn here, in the colours of the light theme, for
paper. Of a figure with anything else (see `_can_draw`) `drawn` returns '', and the report shows only the numbers.
"""

from __future__ import annotations

import math
import re
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from django.utils.safestring import SafeString, mark_safe

from dashboard.charts import svg_marks, svg_traces
from dashboard.charts.svg_traces import CHARACTER, Axis, Plot, label, text, unmarked
from dashboard.charts.theme import VAR, Figure
from parallel_core.analysis.quantities import large_text

WIDTH, HALF = 800, 400
"""Pixels: width of a picture as wide as the page, and of one of two next to each other."""
LEGEND_ROW = 20
TITLE = 20
"""Pixels for the title of a vertical axis."""
YS = ("y", "y2")
"""Vertical axes that a figure may have."""
STYLESHEET = Path(__file__).resolve().parent.parent / "static" / "css" / "trainyard.css"
_COLOUR = re.compile(r"--([\w-]+):\s*light-dark\((#[0-9a-f]{6}),")


@cache
def light() -> dict[str, str]:
    """Returns custom property -> its colour in the light theme, from the stylesheet, which holds each colour once."""
    return {**dict(_COLOUR.findall(STYLESHEET.read_text())), "sans": "inherit"}


def drawn(figure: Figure, width: int = WIDTH) -> SafeString:
    """Returns an `svg` of `width` pixels that scales with the page; '' if the figure is empty or has a part of another
    kind."""
    data = [trace for trace in figure["data"] if trace.get("x") is not None]
    if not data or not _can_draw(figure):
        return mark_safe("")
    plot = _plot(figure["layout"], data, width)
    names = _legend(data)
    head = _head(names, plot)
    parts = [
        *_axes(plot, figure["layout"], _titled(data)),
        *(part for trace in data for part in svg_traces.DRAW[trace["type"]](trace, plot)),
    ]
    height = plot.height + head.height
    body = f'{head.body}<g transform="translate(0 {head.height})">{"".join(parts)}</g>'
    made = f'<svg viewBox="0 0 {width} {height}" class="figure" aria-hidden="true">{body}</svg>'
    return mark_safe(_painted(made))


def _can_draw(figure: Figure) -> bool:
    """Whether all traces are bars, horizontal ones, or lines, areas, markers and text, and all axes linear ones of
    numbers. An axis whose numbers are rows names them by `ticktext`."""
    axes = (axis for name, axis in figure["layout"].items() if name.startswith(("xaxis", "yaxis")))
    return all(map(_is_known, figure["data"])) and all(axis.get("type", "linear") == "linear" for axis in axes)


def _is_known(trace: dict[str, Any]) -> bool:
    if trace["type"] not in svg_traces.DRAW or trace.get("yaxis", "y") not in YS:
        return False
    if trace["type"] == "heatmap" and len(trace.get("colorscale", ())) != 2:
        return False
    if trace["type"] == "bar" and trace.get("orientation") != "h":
        return False
    values = (value for name in ("x", "y") for value in trace.get(name) or ())
    return all(value is None or isinstance(value, Real) for value in values)


def hatches() -> SafeString:
    """Returns the hatch patterns, which all pictures of a page share."""
    return mark_safe(
        _painted(f'<svg width="0" height="0" class="hatches" aria-hidden="true">{svg_marks.patterns()}</svg>')
    )


def _painted(made: str) -> str:
    return VAR.sub(lambda found: light().get(found[1], "#000"), made)


def _plot(layout: dict[str, Any], data: list[dict[str, Any]], width: int) -> Plot:
    left = 16 + max(
        (CHARACTER * len(unmarked(line)) for tick in _y_words(layout, data) for line in tick.split("<br>")),
        default=0,
    )
    left += TITLE if _titled(data) else 0
    top = int(layout["margin"]["t"]) if _above(layout) else 8
    height = int(layout["height"]) + min(0, top - int(layout["margin"]["t"]))
    floor = height - 44
    stacked = layout.get("barmode") == "stack"
    x = _axis(layout.get("xaxis", {}), _reach(data, "x", stacked), left, width - 24)
    ys = {}
    for name in YS:
        own = [trace for trace in data if trace.get("yaxis", "y") == name]
        if own:
            given = layout.get("yaxis" if name == "y" else "yaxis2", {})
            low, high = given.get("domain", (0, 1))
            ends = floor - low * (floor - top), floor - high * (floor - top)
            ys[name] = _axis(given, _reach(own, "y", any("stackgroup" in trace for trace in own)), *ends)
    return Plot(x, ys, left, width - 24, top, floor, height, float(layout.get("bargap", 0.2)), stacked, len(data))


def _titled(data: list[dict[str, Any]]) -> bool:
    """Whether the vertical axis has its title: where rows are values of a field, which nothing else names."""
    return any(trace["type"] == "heatmap" for trace in data)


def _above(layout: dict[str, Any]) -> list[dict[str, Any]]:
    """The annotations above the drawing area, each at a value of the horizontal axis."""
    return [note for note in layout.get("annotations", ()) if note.get("yref") == "paper" and note["y"] > 1]


def _y_words(layout: dict[str, Any], data: list[dict[str, Any]]) -> list[str]:
    """The texts next to the vertical axis."""
    words = [str(word) for word in layout.get("yaxis", {}).get("ticktext", ())]
    return words or [number(value) for value in nice(*_reach(data, "y", stacked=False))]


def _axis(given: dict[str, Any], reach: tuple[float, float], begin: float, end: float) -> Axis:
    """The axis with its range as given, else what the data reach plus some room; from 0 if `rangemode` asks for it."""
    low, high = reach
    if given.get("rangemode") == "tozero":
        low, high = min(0.0, low), high * 1.08
    elif high > low:
        low, high = low - 0.05 * (high - low), high + 0.05 * (high - low)
    low, high = (float(end) for end in given.get("range") or (low, high))
    return Axis(low, high if high != low else low + 1, begin, end)


def _reach(data: list[dict[str, Any]], name: str, stacked: bool) -> tuple[float, float]:
    """The least and greatest value on an axis over all traces; bars begin at 0 and may be stacked."""
    values: list[float] = []
    sums: dict[Any, float] = {}
    for trace in data:
        own = [0.0 if value is None else float(value) for value in trace[name]]
        bars = trace["type"] == "bar" and name == "x"
        values += [v for v, raw in zip(own, trace[name], strict=True) if raw is not None and math.isfinite(v)]
        values += [0.0] if bars or "stackgroup" in trace else []
        if (stacked and bars and "base" not in trace) or "stackgroup" in trace:
            for i, value in enumerate(own):
                key = trace["y"][i] if bars else trace["x"][i]
                sums[key] = sums.get(key, 0.0) + value
    values += list(sums.values())
    return (min(values), max(values)) if values else (0.0, 1.0)


def nice(low: float, high: float, most: int = 7) -> list[float]:
    """Evenly spaced round values within `low` .. `high`, at most `most` + 1."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A value at an axis; millions of steps or tokens with their unit, as the charts of live pages have them."""
    size = abs(value)
    if 1e6 <= size < 1e15:
        return f"{'-' * (value < 0)}{large_text(round(size))}"
    return f"{value:g}" if size < 1e6 else f"{value:.3g}"


def _axes(plot: Plot, layout: dict[str, Any], titled: bool) -> list[str]:
    """The grid, ticks and axis titles as SVG elements; the vertical axis has its title if `titled`."""
    out = [*_below(plot, layout.get("xaxis", {})), *_notes(plot, layout)]
    if titled:
        words = str(layout["yaxis"]["title"]["text"])
        made = text(0, 0, words, "middle", "ink-2", safe=True)
        out.append(f'<g transform="translate(12 {(plot.top + plot.floor) / 2:.1f}) rotate(-90)">{made}</g>')
    for name, axis in plot.ys.items():
        own = layout.get("yaxis" if name == "y" else "yaxis2", {})
        if own.get("ticktext"):
            for value, words in zip(own["tickvals"], own["ticktext"], strict=True):
                out += label(plot.left - 8, axis(value) + 4, str(words))
            continue
        for value in nice(axis.low, axis.high, int(own.get("nticks", 5))):
            at = axis(value)
            out.append(f'<path d="M{plot.left:.1f} {at:.1f}H{plot.right}" stroke="var(--grid)"/>')
            out.append(text(plot.left - 8, at + 4, number(value), "end", "ink-2"))
    return out


def _below(plot: Plot, given: dict[str, Any]) -> list[str]:
    """The grid lines, ticks and title of the horizontal axis; words of `ticktext` are escaped already."""
    values, named, out = given.get("tickvals") or nice(plot.x.low, plot.x.high), given.get("ticktext"), []
    for i, value in enumerate(values):
        at = plot.x(value)
        out.append(f'<path d="M{at:.1f} {plot.top}V{plot.floor}" stroke="var(--grid)"/>')
        words = str(named[i]) if named else f"{number(value)}{given.get('ticksuffix', '')}"
        out.append(text(at, plot.floor + 16, words, "middle", "ink-2", safe=bool(named)))
    title = str(given.get("title", {}).get("text", ""))
    out.append(text((plot.left + plot.right) / 2, plot.floor + 36, title, "middle", "ink-2", safe=bool(named)))
    return out


def _notes(plot: Plot, layout: dict[str, Any]) -> list[str]:
    """The annotations above the drawing area, the last line of each just above it."""
    out = []
    for note in _above(layout):
        for i, line in enumerate(reversed(str(note["text"]).split("<br>"))):
            out.append(text(plot.x(note["x"]), plot.top - 6 - 15 * i, line, "middle", "ink-2", safe=True))
    return out


class Head(NamedTuple):
    """The legend: its height in pixels, and its SVG elements."""

    height: int
    body: str


def _legend(data: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The traces that a legend must name; [] where there is only one."""
    own = [trace for trace in data if trace.get("name") and trace.get("showlegend", True)]
    named = [trace for trace in own if not isinstance(svg_traces.colour(trace), list)]
    unique = list({trace["name"]: trace for trace in named if trace.get("mode") != "text"}.values())
    return unique if len(unique) > 1 else []


def _head(names: list[dict[str, Any]], plot: Plot) -> Head:
    at, row, out = 8.0, 0, []
    for trace in names:
        wide = 34 + CHARACTER * len(trace["name"])
        if at + wide > plot.right:
            at, row = 8.0, row + 1
        y = 14 + LEGEND_ROW * row
        out.append(svg_traces.swatch(trace, at, y - 4))
        out.append(text(at + 24, y, trace["name"], "start", "ink-2", safe=True))
        at += wide
    return Head(LEGEND_ROW * (row + 1) if names else 0, "".join(out))
