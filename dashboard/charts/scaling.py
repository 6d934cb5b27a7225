"""Speed against the number of devices: speedup next to the ideal, and the share of a step that communication stalls.

The second chart is the one that PipeDream begins with (Narayanan et al. 2019, figure 1): the overhead of data
parallelism against the number of workers, one line a model; here measured on the yard's own devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboard.charts import theme
from dashboard.charts.chart import Chart
from dashboard.charts.theme import line_of, var
from parallel_core.analysis.quantities import percent_text, plural_text, ratio_text, significant
from parallel_core.analysis.sentences import also_close

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x")
"""Markers, one for each model."""
DASHES = {"strong": "solid", "weak": "dash", "": "solid"}


class Point(NamedTuple):
    """One measured split. `speedup` is in samples/s over the split `base` on `fewest` devices; `stall` = share of its
    step, None if not traced."""

    model: str
    """'' where the study has only one model."""
    label: str
    family: str
    way: str
    """strong, weak, or '' on one device."""
    devices: int
    speedup: float
    stall: float | None
    disturbed: bool = False
    cores: int = 0
    """Number of cores shared by all devices; 0 where each device has its own."""
    fewest: int = 1
    """The fewest devices of the same model that have a result."""
    base: str = ""
    """Name of the split on those."""
    whiskers: tuple[float, float] | None = None
    """The speedups at the 90th and the 10th percentile of its step; None where they are not known."""

    @property
    def ideal(self) -> float:
        """The highest speedup possible on these devices, linear in those that compute at once. The ideal of a strategy,
        of which other charts tell the share, is lower by its bubble."""
        return self._able(self.devices) / self._able(self.fewest)

    def _able(self, devices: int) -> int:
        """How many of these devices can compute at once."""
        return min(devices, self.cores or devices)

    @property
    def shared(self) -> bool:
        """Whether several devices take turns on a core: what that loses is not the fault of the strategy."""
        return 0 < self.cores < self.devices

    @property
    def efficiency(self) -> float:
        return self.speedup / self.ideal

    @property
    def name(self) -> str:
        return named(self.model, self.label, self.way)


def named(*parts: str) -> str:
    """The name of a split, from those of its parts that are not empty."""
    return ", ".join(part for part in parts if part)


def speedup(points: Sequence[Point], source: str) -> Chart:
    """Speedup against devices, one line for each model, strategy and way of scaling; what is linear is dotted."""
    lines = _lines(points)
    counts = sorted({point.devices for point in points})
    drawn = [_line(own, [p.speedup for p in own], "%{y:.2f} x on %{x}", _symbol(points, own)) for own in lines]
    layout = _layout(counts, f"times {_over(points)}, samples/s", drawn)
    figure = {"data": [*_ideals(points), *drawn] if lines else [], "layout": layout}
    rows = [
        [p.name, str(p.devices), ratio_text(p.speedup), percent_text(p.efficiency), "yes" if p.disturbed else ""]
        for p in points
    ]
    columns = ("run", "devices", "speedup", "efficiency", "disturbed")
    subtitle = f"Speedup in samples/s over {_over(points)} of the same model; dotted = linear, dashed = weak scaling"
    if shared := next((p for p in points if p.shared), None):
        subtitle += f"; {shared.devices} devices share {plural_text(shared.cores, 'core')}"
        if len({point.fewest for point in points}) == 1:  # else each base has an ideal of its own
            subtitle += f", so linear ends at {significant(shared.ideal)}"
    title = (sentences(points) or [unscaled(points)])[0]
    return Chart("scaling", title, subtitle, source, figure, columns, rows)


def _over(points: Sequence[Point]) -> str:
    """What speedups are over: one device, or the fewest with a result, and which split is the base there."""
    bases = {(point.fewest, point.base) for point in points} or {(1, "")}
    (fewest, base), *others = sorted(bases)
    counts = {count for count, _ in bases}
    if counts == {1}:
        return "one device"
    if len(counts) > 1:
        return "the fewest devices with a result"
    return f"{fewest} devices" if others else f"{fewest} devices ({base})"


def _ideals(points: Sequence[Point]) -> list[dict[str, Any]]:
    """A dotted line for each number of devices that speedups are over."""
    ideals: dict[int, dict[int, float]] = {}
    for point in sorted(points, key=lambda point: (point.fewest, point.devices)):
        ideals.setdefault(point.fewest, {})[point.devices] = point.ideal
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "linear" if fewest == 1 else f"linear over {fewest} devices",
            "x": list(line),
            "y": list(line.values()),
            "line": {"color": var("ink-2"), "width": 1, "dash": "dot"},
            "hovertemplate": "linear: %{y} x<extra></extra>",
        }
        for fewest, line in ideals.items()
    ]


def stalls(points: Sequence[Point], source: str) -> Chart:
    """Stalls of data parallelism where there is any, else of all strategies."""
    known = [point for point in points if point.stall is not None]
    shown = [point for point in known if point.family in ("dp", "single")]
    shown = shown if any(point.family == "dp" for point in shown) else known
    lines = _lines(shown)
    drawn = [
        _line(own, [100 * (p.stall or 0) for p in own], "%{y:.1f} % on %{x}", _symbol(points, own)) for own in lines
    ]
    layout = _layout(sorted({point.devices for point in shown}), "% of the step", drawn)
    layout["yaxis"]["range"] = [0, max((1.1 * y for line in drawn for y in line["y"]), default=0) or 10]
    rows = [[p.name, str(p.devices), percent_text(p.stall or 0)] for p in shown]
    whose = " of data parallelism" if len(shown) < len(known) else ""
    subtitle = (
        f"Communication{whose} that computing does not hide, share of a traced step; solid = strong, dashed = weak "
        "scaling"
    )
    figure = {"data": drawn, "layout": layout}
    return Chart("stalls", _stalled(shown), subtitle, source, figure, ("run", "devices", "stalled"), rows)


def sentences(points: Sequence[Point]) -> list[str]:
    """The best and the worst efficiency at the largest number of devices; [] if no point has more devices than its
    base."""
    beyond = [point for point in points if point.devices > point.fewest]
    most = max((point.devices for point in beyond), default=0)
    there = sorted((p for p in beyond if p.devices == most), key=lambda point: -point.efficiency)
    if not there:
        return []
    best, worst = there[0], there[-1]
    cores = "1 core allows" if best.cores == 1 else f"{best.cores} cores allow"
    what = f"of what {cores}, shared by {most} devices" if best.shared else f"efficiency on {most} devices"
    close = also_close([point.name for point in there[1:] if _within_noise(best, point)])
    out = [f"{percent_text(best.efficiency)} {what}: {best.name} scales best, {_times(best)}{close}."]
    if worst is not best:
        out.append(f"{percent_text(worst.efficiency)} is the least on {most} devices: {worst.name}, {_times(worst)}.")
    return out


def _within_noise(best: Point, other: Point) -> bool:
    """Whether the other may be as efficient: their whiskers overlap."""
    if best.whiskers is None or other.whiskers is None:
        return False
    return best.whiskers[0] / best.ideal <= other.whiskers[1] / other.ideal


def unscaled(points: Sequence[Point]) -> str:
    """What is missing where `sentences` has nothing to say."""
    several = max((point.fewest for point in points), default=1)
    if several == 1:
        return "0 runs on more than one device have a result."
    return f"0 runs on more than {several} devices, the fewest with a result, have one."


def _times(point: Point) -> str:
    return f"{ratio_text(point.speedup)} of {'one' if point.fewest == 1 else f'{point.base} on {point.fewest}'}"


def _stalled(points: Sequence[Point]) -> str:
    many = [point for point in points if point.devices > 1]
    if not many:
        return "0 steps of several devices have been traced."
    worst = max(many, key=lambda point: point.stall or 0)
    least = min((p for p in many if p.devices == worst.devices), key=lambda point: point.stall or 0)
    first = (
        f"{percent_text(worst.stall or 0)} of a step stalls on communication: {worst.name} on {worst.devices} devices"
    )
    return f"{first}." if least is worst else f"{first}; least {percent_text(least.stall or 0)}, {least.name}."


def _lines(points: Sequence[Point]) -> list[list[Point]]:
    """Groups points by model, strategy and way, each beginning with the model's fastest run on one device; sorted by
    those names. What else ran on one device has a line of its own."""
    alone = sorted((point for point in points if point.devices == 1), key=lambda point: point.speedup)
    starts = {point.model: point for point in alone}
    found: dict[tuple[str, str, str], list[Point]] = {}
    for point in sorted((p for p in points if p is not starts.get(p.model)), key=lambda p: p.devices):
        first = [starts[point.model]] if point.model in starts and point.devices > 1 else []
        found.setdefault((point.model, point.label, point.way), first).append(point)
    return [found[key] for key in sorted(found)]


def _symbol(points: Sequence[Point], own: Sequence[Point]) -> str:
    models = sorted({point.model for point in points})
    return SYMBOLS[models.index(own[-1].model) % len(SYMBOLS)]


def _line(own: Sequence[Point], y: Sequence[float], hover: str, symbol: str) -> dict[str, Any]:
    last = own[-1]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": theme.escape_label(last.name),
        "x": [point.devices for point in own],
        "y": list(y),
        "line": {"color": line_of(last.family), "width": 2, "dash": DASHES[last.way]},
        "marker": {"symbol": symbol, "size": 8, "color": line_of(last.family)},
        "hovertemplate": f"{theme.escape_label(last.name)}: {hover}<extra></extra>",
    }


def _layout(counts: Sequence[int], axis: str, drawn: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rows = -(-len(drawn) // 2)
    layout = theme.layout(
        300 + 20 * rows,
        showlegend=bool(drawn),
        legend=theme.legend_above(),
        xaxis=theme.axis("devices", tickvals=list(counts), zeroline=False),
        yaxis=theme.axis(axis, rangemode="tozero"),
        hovermode="closest",
    )
    layout["margin"]["t"] = 8 + 20 * (rows + 1)
    return layout
