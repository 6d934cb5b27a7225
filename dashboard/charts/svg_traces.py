"""Draws the traces of a figure as SVG elements: bars, lines with areas, markers, text, and cells of heat maps."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dashboard.charts import theme
from dashboard.charts.svg_marks import each, mark, pattern
from dashboard.charts.theme import CLEAR

DASH = {"dash": "6 4", "dot": "2 3", "dashdot": "8 3 2 3", "longdash": "12 4", "longdashdot": "12 4 2 4"}
CHARACTER = 7.0
"""Mean width in pixels of a character at font size 13."""
LEAST_TEXT = 6.0
"""Width in pixels of a digit inside a bar; text that does not fit into its bar is left out."""
_BREAK = re.compile(r"<br>")
_TAG = re.compile(r"<[^>]*>")


def unmarked(text: str) -> str:
    """A text of Plotly's without its tags."""
    return _TAG.sub("", text)


class Axis(NamedTuple):
    """Maps values from `low` to `high` linearly to pixels from `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)


@dataclass
class Plot:
    """The drawing area in pixels; `sums` = where the bars and areas stacked so far end."""

    x: Axis
    ys: dict[str, Axis]
    left: float
    right: float
    top: float
    floor: float
    height: int
    bargap: float
    stacked: bool
    traces: int
    sums: dict[Any, float] = field(default_factory=dict)

    def y(self, trace: dict[str, Any]) -> Axis:
        return self.ys[trace.get("yaxis", "y")]


def text(x: float, y: float, words: str, anchor: str, fill: str, *, size: int = 12, safe: bool = False) -> str:
    """A line of text; escaped unless it is from a figure, where names are escaped already (`safe`)."""
    shown = words if safe else html.escape(words, quote=False)
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="var(--{fill})">{shown}</text>'
    )


def label(x: float, y: float, words: str) -> list[str]:
    """A row's name as Plotly shows it: split at <br>, bold where it says so; names in it are escaped already."""
    lines = _BREAK.split(words)
    first = y - 7 * (len(lines) - 1)
    out = []
    for i, line in enumerate(lines):
        made = text(x, first + 15 * i, unmarked(line), "end", "ink-2" if theme.SMALL in line else "ink", safe=True)
        out.append(made.replace("<text ", '<text font-weight="600" ') if "<b>" in line else made)
    return out


def colour(trace: dict[str, Any]) -> Any:
    """The trace's fill or line colour; a list where each point has its own."""
    if "stackgroup" in trace:
        return trace.get("fillcolor")
    own = trace.get("marker" if trace["type"] == "bar" or "lines" not in trace.get("mode", "") else "line", {})
    return own.get("color") or own.get("line", {}).get("color")


def swatch(trace: dict[str, Any], x: float, y: float) -> str:
    """The trace's symbol in the legend."""
    if trace["type"] == "bar" or "stackgroup" in trace:
        fill, line = colour(trace), trace.get("marker", {}).get("line", {})
        edge = f' stroke="{line.get("color")}"' if fill == CLEAR else ""
        rect = f'x="{x:.1f}" y="{y - 6:.1f}" width="16" height="11"'
        return "".join([f'<rect {rect} fill="{_fill(trace, 0)}"{edge}/>', *_hatch(trace, 0, rect)])
    if "lines" in trace.get("mode", ""):
        return f'<path d="M{x:.1f} {y:.1f}h18" {_stroke(trace)}/>'
    return mark(trace, 0, x + 8, y)


def bars(trace: dict[str, Any], plot: Plot) -> list[str]:
    """Horizontal bars with their whiskers and texts; they begin at their base, else where the stack ends, or at 0."""
    out, axis = [], plot.y(trace)
    row = abs(axis(1) - axis(0))
    for i, (y, long) in enumerate(zip(trace["y"], trace["x"], strict=True)):
        begin = each(trace["base"], i) if "base" in trace else plot.sums.get(y, 0.0) if plot.stacked else 0.0
        if plot.stacked and "base" not in trace:
            plot.sums[y] = begin + long
        tall = row * (each(trace["width"], i) if trace.get("width") is not None else 1 - plot.bargap)
        x0, x1 = plot.x(max(begin, plot.x.low)), plot.x(min(begin + long, plot.x.high))
        rect = f'x="{x0:.2f}" y="{axis(y) - tall / 2:.1f}" width="{max(x1 - x0, 0):.2f}" height="{tall:.1f}"'
        out.append(f'<rect {rect} fill="{_fill(trace, i)}"{_edge(trace, i)}/>')
        out += _hatch(trace, i, rect)
        out += _whisker(trace, i, plot, axis(y)) + _inside(trace, i, (x0, x1), axis(y))
    return out


def scatter(trace: dict[str, Any], plot: Plot) -> list[str]:
    """Lines with gaps at None, stacked areas, markers and texts."""
    mode, axis = trace.get("mode", "lines"), plot.y(trace)
    if "stackgroup" in trace:
        return [_area(trace, plot, axis)]
    points = [
        None if x is None or y is None else (plot.x(float(x)), axis(float(y)))
        for x, y in zip(trace["x"], trace["y"], strict=True)
    ]
    opacity = f' opacity="{trace["opacity"]}"' if "opacity" in trace else ""
    out = [f'<path d="{_path(points)}" fill="none" {_stroke(trace)}{opacity}/>'] if "lines" in mode else []
    most = trace.get("marker", {}).get("maxdisplayed", 0)
    every = -(-len(points) // most) if most else 1  # maxdisplayed: Plotly draws every n-th marker, too
    for i, point in enumerate(points):
        if point is None:
            continue
        if "markers" in mode and not i % every:
            out.append(mark(trace, i, *point))
        if "text" in mode and each(trace["text"], i):
            place = str(each(trace.get("textposition", ""), i))
            above = -10 if "top" in place else 16 if "bottom" in place else 4
            words = unmarked(str(each(trace["text"], i)))
            over = "left" in place or point[0] + 6 + CHARACTER * len(words) > plot.right + 20
            side, anchor = (-6, "end") if over else (6, "start")
            out.append(text(point[0] + side, point[1] + above, words, anchor, "ink", safe=True))
    return out


def cells(trace: dict[str, Any], plot: Plot) -> list[str]:
    """The cells of a heat map with their texts: of two colours, the first over the second, the more of it the less the
    value. A cell without a value has its text alone."""
    (_, best), (_, worst) = trace["colorscale"]
    low, span, axis, out = trace["zmin"], trace["zmax"] - trace["zmin"], plot.y(trace), []
    wide, tall = abs(plot.x(1) - plot.x(0)) - trace.get("xgap", 0), abs(axis(1) - axis(0)) - trace.get("ygap", 0)
    for y, values, words in zip(trace["y"], trace["z"], trace["text"], strict=True):
        for x, value, word in zip(trace["x"], values, words, strict=True):
            rect = f'x="{plot.x(x) - wide / 2:.1f}" y="{axis(y) - tall / 2:.1f}" width="{wide:.1f}" height="{tall:.1f}"'
            if value is not None:
                share = 1 - min(max((value - low) / span, 0.0), 1.0)
                out.append(f'<rect {rect} fill="{worst}"/><rect {rect} fill="{best}" fill-opacity="{share:.2f}"/>')
            if "texttemplate" in trace:
                out.append(text(plot.x(x), axis(y) + 4, word, "middle", "ink", size=11, safe=True))
    return out


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    parts, pen = [], "M"
    for point in points:
        if point is not None:
            parts.append(f"{pen}{point[0]:.1f} {point[1]:.1f}")
        pen = "M" if point is None else "L"
    return "".join(parts)


def _area(trace: dict[str, Any], plot: Plot, axis: Axis) -> str:
    """The area on top of those drawn before it in its group; with steps where its line has them."""
    group = trace["stackgroup"]
    low: list[tuple[float, float]] = []
    high: list[tuple[float, float]] = []
    steps = trace.get("line", {}).get("shape") == "hv"
    for i, (x, y) in enumerate(zip(trace["x"], trace["y"], strict=True)):
        below = plot.sums.get((group, i), 0.0)
        plot.sums[group, i] = below + y
        for line, value in ((low, below), (high, below + y)):
            if steps and line:
                line.append((plot.x(x), line[-1][1]))
            line.append((plot.x(x), axis(value)))
    return f'<path d="{_path([*high, *reversed(low)])}Z" fill="{colour(trace)}"/>'


def _stroke(trace: dict[str, Any]) -> str:
    line = trace.get("line", {})
    dash = DASH.get(line.get("dash", "solid"))
    return f'stroke="{line.get("color")}" stroke-width="{line.get("width", 2)}"' + (
        f' stroke-dasharray="{dash}"' if dash else ""
    )


def _whisker(trace: dict[str, Any], i: int, plot: Plot, y: float) -> list[str]:
    error = trace.get("error_x")
    if not error or error["array"][i] is None:
        return []
    ends = [plot.x(trace["x"][i] - error["arrayminus"][i]), plot.x(trace["x"][i] + error["array"][i])]
    caps = "".join(f"M{x:.1f} {y - 3:.1f}v6" for x in ends)
    return [f'<path d="M{ends[0]:.1f} {y:.1f}H{ends[1]:.1f}{caps}" stroke="{error["color"]}" stroke-width="1.25"/>']


def _inside(trace: dict[str, Any], i: int, ends: tuple[float, float], y: float) -> list[str]:
    words = str(each(trace.get("text", ""), i)).strip()
    if not words:
        return []
    if trace.get("textposition") == "outside":
        return [text(ends[1] + 4, y + 4, words, "start", "ink-2", safe=True)]
    if ends[1] - ends[0] < LEAST_TEXT * len(words) + 2:
        return []
    made = text(sum(ends) / 2, y + 4, words, "middle", "ink", size=11, safe=True)
    return [made.replace("var(--ink)", str(trace.get("insidetextfont", {}).get("color", "var(--ink)")))]


def _idle(trace: dict[str, Any]) -> bool:
    return bool(trace.get("marker", {}).get("color") == "var(--phase-idle)")


def _hatch(trace: dict[str, Any], i: int, rect: str) -> list[str]:
    """The pattern over bar `i`, whose place and size are `rect`."""
    hatch = pattern(trace, i)
    return [f'<rect {rect} fill="url(#{hatch})"/>'] if hatch and not _idle(trace) else []


def _fill(trace: dict[str, Any], i: int) -> str:
    if _idle(trace):
        return "url(#hatch-idle)"
    under = trace.get("marker", {}).get("pattern", {}).get("bgcolor") if pattern(trace, i) else None
    return str(each(under or colour(trace), i)).replace(CLEAR, "none")


def _edge(trace: dict[str, Any], i: int) -> str:
    line = trace.get("marker", {}).get("line", {})
    if not line.get("width"):
        return ""
    return f' stroke="{each(line.get("color"), i)}" stroke-width="{line["width"]}"'


DRAW: dict[str, Callable[[dict[str, Any], Plot], list[str]]] = {"bar": bars, "scatter": scatter, "heatmap": cells}
