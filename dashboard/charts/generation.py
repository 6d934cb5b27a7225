"""Text generation on several splits over devices: time of a token, one row a split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboard.charts import theme
from dashboard.charts.chart import Chart, row_height
from dashboard.charts.theme import var
from parallel_core.analysis.generated import Parts
from parallel_core.analysis.quantities import range_text, ratio_text, seconds_text
from parallel_core.analysis.sentences import also_close
from parallel_core.analysis.stats import Stats, speedup

_ROOM = 1.3
"""How far the axis goes beyond the longest mark, so that the text after it is not cut."""


class Bar(NamedTuple):
    """The result of one split. `prefill` in seconds; `token`: Stats of the seconds of each later token."""

    label: str
    prefill: float
    token: Stats
    single: bool = False
    """Whether it is the single device, with which the others are compared."""
    parts: Parts | None = None
    """Where a token goes; None if that is not known."""
    whole: float | None = None
    """Seconds of the whole text, on the replica that took longest; None of runs of earlier versions."""
    disturbed: bool = False
    """Whether other processes used its devices: drawn only where no run was left alone."""

    @property
    def later(self) -> float:
        """Seconds of all tokens after the first."""
        return self.token.mean * self.token.n if self.whole is None else max(self.whole - self.prefill, 0.0)


def tokens(bars: Sequence[Bar], source: str, *, more: bool = False) -> Chart:
    """Median seconds of a token after the first, with whiskers. `more`: whether runs have not ended."""
    spread = [(bar.token.p10, bar.token.p90) for bar in bars]
    figure = _figure(bars, [bar.token.median for bar in bars], spread)
    rows = [
        [
            bar.label,
            seconds_text(bar.token.median, zeros=True),
            range_text(bar.token.p10, bar.token.p90),
            _ratio(bars, bar),
        ]
        for bar in bars
    ]
    columns = ("split", "time of a token", "10 % to 90 %", "times the single device's")
    subtitle = "Time of a token after the first, on the slowest replica; bar = median, whisker = 10 % to 90 %"
    if any(bar.disturbed for bar in bars):
        subtitle += "; cross-hatched = disturbed by other processes"
    return Chart("tokens", _quickest(bars) or nothing(more), subtitle, source, figure, columns, rows)


def nothing(more: bool) -> str:
    """The title of a chart without any row."""
    return f"0 splits have generated text{' so far' if more else ''}."


def _quickest(bars: Sequence[Bar]) -> str:
    if not bars:
        return ""
    best = min(bars, key=lambda bar: bar.token.median)
    said = f"{best.label} takes {seconds_text(best.token.median)} a token"
    if len(bars) == 1:
        return f"{said}."
    worst = max(bars, key=lambda bar: bar.token.median)
    close = [bar.label for bar in bars if bar is not best and speedup(bar.token, best.token).within_noise]
    if worst.label in close:
        return f"{said}, the least{also_close(close)}."
    return f"{said}, the least{also_close(close)}; {worst.label} takes most, {seconds_text(worst.token.median)}."


def _ratio(bars: Sequence[Bar], bar: Bar) -> str:
    single = next((one for one in bars if one.single), None)
    return ratio_text(bar.token.median / single.token.median) if single and single.token.median else ""


def _figure(bars: Sequence[Bar], seconds: Sequence[float], spread: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """One row a bar, in ms; the shortest is in the accent's colour."""
    ends = [high for _, high in spread]
    labels = [theme.escape_label(bar.label) for bar in bars]
    return {
        "data": [_bars(bars, labels, seconds, spread), _words(seconds, ends)] if bars else [],
        "layout": theme.layout(
            row_height(len(bars)),
            xaxis=theme.axis("ms", range=[0, _ROOM * 1e3 * max(ends, default=1e-3)]),
            yaxis=theme.rows_axis(
                [f"<b>{label}</b>" if bar.single else label for label, bar in zip(labels, bars, strict=True)]
            ),
            bargap=0.25,
        ),
    }


def _bars(
    bars: Sequence[Bar], labels: Sequence[str], seconds: Sequence[float], spread: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    least = min(seconds)
    fills = [var("accent" if value == least else "bar") for value in seconds]
    made = {
        "type": "bar",
        "orientation": "h",
        "name": "measured",
        "y": list(range(len(seconds))),
        "x": [1e3 * value for value in seconds],
        "marker": _marker(bars, fills),
        "customdata": list(labels),
        "hovertemplate": "%{customdata}: %{x:.3g} ms<extra></extra>",
    }
    if spread:
        made["error_x"] = {
            "type": "data",
            "symmetric": False,
            "array": [1e3 * (high - value) for value, (_, high) in zip(seconds, spread, strict=True)],
            "arrayminus": [1e3 * (value - low) for value, (low, _) in zip(seconds, spread, strict=True)],
            "color": var("ink"),
            "thickness": 1.25,
            "width": 3,
        }
    return made


def _marker(bars: Sequence[Bar], fills: Sequence[str]) -> dict[str, Any]:
    """Their fills; where times were disturbed, hatched and edged as in the chart of speedups."""
    if not any(bar.disturbed for bar in bars):
        return {"color": fills, "line": {"width": 0}}
    pattern = theme.hatches(["x" if bar.disturbed else "" for bar in bars], fills)
    return {"color": fills, "line": {"color": fills, "width": 1.5}, "pattern": pattern}


def _words(seconds: Sequence[float], ends: Sequence[float]) -> dict[str, Any]:
    """The time after each bar and its whisker."""
    gap = 0.02 * max(ends)
    return {
        "type": "scatter",
        "mode": "text",
        "y": list(range(len(seconds))),
        "x": [1e3 * (max(value, end) + gap) for value, end in zip(seconds, ends, strict=True)],
        "text": [f"<b>{seconds_text(value, zeros=True)}</b>" for value in seconds],
        "textposition": "middle right",
        "textfont": {"color": var("ink"), "size": 12},
        "hoverinfo": "skip",
        "cliponaxis": False,
    }
