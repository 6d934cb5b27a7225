"""Text generation: where a token goes, prefill against the later tokens, and the time of a token over its position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboard.charts import theme
from dashboard.charts.chart import Chart, row_height
from dashboard.charts.generation import Bar, nothing
from parallel_core.analysis.generated import Stretch
from parallel_core.analysis.quantities import percent_text, range_text, rate_text, seconds_text

HEIGHT = 330
MOST_LINES = 8
_BETWEEN = "between stages"
_PARTS = (("compute", "forward"), ("tensor collectives", "communication"), (_BETWEEN, "communication"))
"""Part of a token -> the phase in whose colour it is drawn."""
_PREFILL = "prefill"
_HUES = {(False, False, False): "single", (True, False, False): "tp", (False, True, False): "pp"}
_HUES |= {(False, False, True): "dp"}
_LEGEND_PX = 24
_DASHES = ("solid", "dash", "dot", "dashdot")


class Line(NamedTuple):
    """The times of a token of one split, (tensor ranks, stages, replicas), over its position."""

    label: str
    split: tuple[int, int, int]
    stretches: Sequence[Stretch]


def where(bars: Sequence[Bar], source: str, *, more: bool = False) -> Chart:
    """Compute and communication of a token, one row a split; those without parts are left out."""
    drawn = [bar for bar in bars if bar.parts]
    parts = [bar.parts for bar in drawn if bar.parts]
    stacks = [(word, phase, [row[i] for row in parts]) for i, (word, phase) in enumerate(_PARTS)]
    figure = _stacked(drawn, stacks)
    rows = [
        [
            bar.label,
            *(seconds_text(value, zeros=True) for value in (*part, part.total)),
            percent_text(part.communication),
        ]
        for bar, part in zip(drawn, parts, strict=True)
    ]
    columns = ("split", *(word for word, _ in _PARTS), "a token, mean", "communication")
    subtitle = "Mean of a token after the first, by the ranks' spans; parts add up; hatched = between stages"
    unknown = "Where a token goes was not measured by these runs." if bars else nothing(more)
    return Chart("where", _talked(drawn) or unknown, subtitle, source, figure, columns, rows)


def _talked(bars: Sequence[Bar]) -> str:
    shares = {bar.label: bar.parts.communication for bar in bars if bar.parts}
    if not shares:
        return ""
    most, least = max(shares, key=lambda name: shares[name]), min(shares, key=lambda name: shares[name])
    said = f"Communication takes {percent_text(shares[most])} of a token on {most}"
    return f"{said}, the most; {percent_text(shares[least])} on {least}." if len(shares) > 1 else f"{said}."


def whole(bars: Sequence[Bar], prompt: int, source: str, *, more: bool = False) -> Chart:
    """Prefill against all later tokens of a text. `prompt`: its tokens in all texts."""
    decodes = [bar.later for bar in bars]
    stacks = [(_PREFILL, "forward", [bar.prefill for bar in bars]), ("later tokens", "forward", decodes)]
    rows = [
        [
            *(bar.label, *(seconds_text(value, zeros=True) for value in (bar.prefill, decode, bar.prefill + decode))),
            *(percent_text(_share(bar, decode)), rate_text(prompt / bar.prefill, zeros=True) if bar.prefill else ""),
        ]
        for bar, decode in zip(bars, decodes, strict=True)
    ]
    columns = ("split", _PREFILL, "later tokens", "whole text", "prefill of it", "prompt in prefill")
    subtitle = "Time of a text; hatched = prefill, with the start-up of a process's first pass"
    title = _finished(bars, decodes) or nothing(more)
    return Chart("prefill", title, subtitle, source, _stacked(bars, stacks), columns, rows)


def _share(bar: Bar, decode: float) -> float:
    return bar.prefill / (bar.prefill + decode) if bar.prefill + decode else 0.0


def _finished(bars: Sequence[Bar], decodes: Sequence[float]) -> str:
    if not bars:
        return ""
    bar, decode = min(zip(bars, decodes, strict=True), key=lambda pair: pair[0].prefill + pair[1])
    whole = seconds_text(bar.prefill + decode)
    return f"{bar.label} has its whole text after {whole}; {percent_text(_share(bar, decode))} of it is prefill."


def positions(lines: Sequence[Line], title: str, source: str) -> Chart:
    """Median seconds of a token over its position in the text: each reads the keys and values of all before it."""
    drawn = [line for line in lines if line.stretches][:MOST_LINES]
    figure = {
        "data": [_line(line, number) for number, line in enumerate(drawn)],
        "layout": theme.layout(
            HEIGHT,
            showlegend=len(drawn) > 1,
            legend=theme.legend_above(),
            xaxis=theme.axis("position in the text, with the prompt", zeroline=False),
            yaxis=theme.axis("ms a token", rangemode="tozero"),
        ),
    }
    rows = [
        [line.label, _places(row), seconds_text(row.median, zeros=True), range_text(row.p10, row.p90)]
        for line in drawn
        for row in line.stretches
    ]
    subtitle = "Median time of a token in stretches of the text; a token reads the keys and values of all before it"
    source += f"; {len(drawn)} of {len(lines)} drawn" if len(drawn) < len(lines) else ""
    columns = ("split", "positions", "time of a token", "10 % to 90 %")
    return Chart("positions", title, subtitle, source, figure, columns, rows)


def _places(row: Stretch) -> str:
    return f"{row.first} to {row.last}" if row.last > row.first else str(row.first)


def _line(line: Line, number: int) -> dict[str, Any]:
    tensor, stages, replicas = line.split
    hue = _HUES.get((tensor > 1, stages > 1, replicas > 1), "combined")
    label = theme.escape_label(line.label)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": label,
        "x": [(row.first + row.last) / 2 for row in line.stretches],
        "y": [1e3 * row.median for row in line.stretches],
        "line": {"color": theme.line_of(hue), "width": 2, "dash": _DASHES[number % len(_DASHES)]},
        "marker": {"size": 5, "color": theme.line_of(hue)},
        "hovertemplate": f"{label}, position %{{x:.0f}}: %{{y:.3g}} ms<extra></extra>",
    }


def _stacked(bars: Sequence[Bar], stacks: Sequence[tuple[str, str, Sequence[float]]]) -> dict[str, Any]:
    """One row a bar, in ms; `stacks`: (word, phase, seconds of each row). Stacks without any time are left out."""
    labels = [theme.escape_label(bar.label) for bar in bars]
    data = [_stack(word, phase, seconds) for word, phase, seconds in stacks if any(seconds)]
    return {
        "data": data,
        "layout": theme.layout(
            row_height(len(bars)) + (_LEGEND_PX if data else 0),
            showlegend=bool(data),
            legend={**theme.legend_above(), "traceorder": "normal"},
            barmode="stack",
            bargap=0.25,
            xaxis=theme.axis("ms", rangemode="tozero"),
            yaxis=theme.rows_axis(
                [f"<b>{label}</b>" if bar.single else label for label, bar in zip(labels, bars, strict=True)]
            ),
        ),
    }


def _stack(word: str, phase: str, seconds: Sequence[float]) -> dict[str, Any]:
    marker: dict[str, Any] = {"color": theme.phase_fill(phase), "line": {"width": 0}}
    if word in (_BETWEEN, _PREFILL):
        marker["pattern"] = theme.hatch("/")
    return {
        "type": "bar",
        "orientation": "h",
        "name": word,
        "y": list(range(len(seconds))),
        "x": [1e3 * value for value in seconds],
        "marker": marker,
        "hovertemplate": f"{word}: %{{x:.3g}} ms<extra></extra>",
    }
