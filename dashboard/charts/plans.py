"""Charts of predicted plans: time against memory, the parts of a step, and memory at four instants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dashboard.charts import theme
from dashboard.charts.chart import Chart
from dashboard.charts.theme import var
from parallel_core.analysis.names import CATEGORY_NAMES
from parallel_core.analysis.quantities import bytes_text, seconds_text, significant
from parallel_core.plan.cluster.step import WORDS

GIB = 1 << 30
FAR, CUT = 6.0, 3.0
"""Where bars reach beyond FAR times the limit, the axis ends at CUT times it: otherwise plans that fit would be too
small to see."""
WORD, NARROW_WORD = 0.13, 0.32
"""Room for a total in words as a part of the axis, and the same on a phone."""
SOURCE = "predicted; constants fitted on four published A100 runs, none of them this one"
LISTED = 10
"""The most plans in the table where none fits."""
IN_SECONDS_S = 10.0
"""Steps from here on are drawn in seconds, shorter ones in ms."""
_PHASES = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recompute",
    "bubble": "idle",
    "optimizer": "optimizer",
    "offload": "optimizer",
}
_IDLE: dict[str, Any] = {"color": theme.phase_fill("idle"), "line": {"color": var("phase-idle-line")}}
_INSTANT_PARTS = ("params", "grads", "optimizer", "activations", "buffers")


class Point(NamedTuple):
    """A plan in the scatter: seconds a step, bytes on its fullest rank, whether it fits, whether no other beats it in
    both."""

    label: str
    seconds: float
    peak: float
    fits: bool
    best: bool
    chosen: bool = False


def scatter(points: Sequence[Point], limit: float, title: str, shown: str) -> Chart:
    """`limit` = bytes a plan may fill; `shown` = how many of how many plans are drawn."""
    groups = [
        ("too large", [p for p in points if not p.fits]),
        ("fits", [p for p in points if p.fits and not p.best]),
        ("none is better in both", [p for p in points if p.best]),
        ("chosen", [p for p in points if p.chosen]),
    ]
    data = [_dots(name, group) for name, group in groups if group]
    front = sorted((p for p in points if p.best), key=lambda p: p.seconds)
    data.insert(0, _line([p.seconds for p in front], [p.peak / GIB for p in front], "ink-2", "dot"))
    widest = 1.06 * max((p.seconds for p in points), default=1)
    data.append(_line([0, widest], [limit / GIB] * 2, "bad", "solid"))
    heights = [limit / GIB, *(p.peak / GIB for p in points)]
    layout = theme.layout(
        420,
        xaxis=theme.axis("seconds a step (left is faster)", range=[0, widest]),
        yaxis=theme.log_axis("GiB on the fullest rank (down is less)", min(heights), max(heights)),
        hovermode="closest",
    )
    subtitle = "Step time against memory of the fullest rank; dotted = none is better in both, red line = the device"
    columns, figure = ("plan", "step, s", "memory", "fits", "none is better in both"), {"data": data, "layout": layout}
    return Chart("plans", title, subtitle, f"{SOURCE}; {shown}", figure, columns, _rows(points))


def _rows(points: Sequence[Point]) -> list[list[str]]:
    """Of the best plans and the chosen one; where there are none, of those that need least memory."""
    told = [p for p in points if p.best or p.chosen] or sorted(points, key=lambda p: p.peak)[:LISTED]
    return [
        [
            p.label,
            significant(p.seconds, zeros=True),
            bytes_text(p.peak, zeros=True),
            "yes" if p.fits else "no",
            "yes" if p.best else "",
        ]
        for p in told
    ]


_MARKERS: dict[str, dict[str, Any]] = {
    "too large": {"symbol": "x-thin", "size": 7, "line": {"width": 1.5, "color": var("bad")}},
    "fits": {"symbol": "circle-open", "size": 7, "color": var("line-strong")},
    "none is better in both": {"symbol": "circle", "size": 9, "color": var("accent")},
    "chosen": {"symbol": "circle-open", "size": 18, "color": var("ink"), "line": {"width": 2.5, "color": var("ink")}},
}


def _dots(name: str, points: Sequence[Point]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [p.seconds for p in points],
        "y": [p.peak / GIB for p in points],
        "marker": _MARKERS[name],
        "customdata": [theme.escape_label(p.label) for p in points],
        "hovertemplate": "%{customdata}<br>%{x:.3g} s, %{y:.3g} GiB<extra></extra>",
    }


def _line(x: Sequence[float], y: Sequence[float], colour: str, dash: str) -> dict[str, Any]:
    line = {"color": var(colour), "width": 1.5, "dash": dash}
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "line": line, "hoverinfo": "skip"}


def step(parts: Mapping[str, float], forward: float, title: str) -> Chart:
    """A waterfall from zero to the whole step; `parts` = seconds by key of `step.WORDS`, `forward` = that part of its
    compute."""
    divided = {"forward": forward, "backward": parts["compute"] - forward, **parts, "compute": 0.0}
    unit, of_a_second = ("s", 1.0) if sum(parts.values()) >= IN_SECONDS_S else ("ms", 1e3)
    named = [
        (WORDS.get(key, key), of_a_second * seconds, _PHASES.get(key, "communication"))
        for key, seconds in divided.items()
        if seconds
    ]
    words = [word for word, _, _ in named] + ["step"]
    whole = sum(took for _, took, _ in named)
    values = [took for _, took, _ in named] + [whole]
    layout = theme.layout(
        72 + 34 * len(words),
        xaxis=theme.axis(unit, range=[0, 1.25 * whole or 1]),
        yaxis=theme.rows_axis(words),
        bargap=0.3,
    )
    rows = [
        [word, significant(took, zeros=True), f"{100 * took / whole:.1f} %"]
        for word, took in zip(words, values, strict=True)
    ]
    subtitle = f"What one step is made of on the rank that ends last, {unit}; outlined = predicted"
    if parts.get("bubble"):
        subtitle += "; bubble = what its schedule alone makes it wait for other stages, by formula"
    texts = [seconds_text(took / of_a_second, zeros=True) for took in values]
    figure = {"data": [_falls(values, texts, [phase for _, _, phase in named])], "layout": layout}
    return Chart("step", title, subtitle, SOURCE, figure, ("part", unit, "of the step"), rows)


def _falls(values: Sequence[float], texts: Sequence[str], phases: Sequence[str]) -> dict[str, Any]:
    """Each bar, with its text, begins where the one above it ends; the last one, the whole step, begins at zero."""
    starts = [sum(values[:i]) for i in range(len(phases))]
    looks = [_IDLE if phase == "idle" else theme.outlined(theme.phase_fill(phase)) for phase in phases]
    fills = [*(look["color"] for look in looks), "rgba(0,0,0,0)"]
    edges = [*(look["line"]["color"] for look in looks), var("bar")]
    shapes = ["/" if phase == "idle" else "" for phase in phases]
    return {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(values))),
        "x": list(values),
        "base": [*starts, 0],
        "marker": {
            "color": fills,
            "line": {"color": edges, "width": theme.PREDICTED_LINE},
            "pattern": theme.hatches([*shapes, ""], fills, "phase-idle-line"),
        },
        "text": list(texts),
        "textposition": "outside",
        "textfont": {"color": var("ink")},
        "cliponaxis": False,
        "hovertemplate": "%{text}<extra></extra>",
    }


def memory(
    rows: Sequence[tuple[str, Mapping[str, float]]], limits: Sequence[float], title: str, key: str = "memory"
) -> Chart:
    """`rows` = (label, bytes by category), top row first; `limits` = bytes that a plan may fill, one a row."""
    totals = [sum(parts.values()) for _, parts in rows]
    widest = max([*totals, *limits])
    cut = widest > FAR * max(limits)
    reach = CUT * max(limits) if cut else 1.2 * widest
    data = [_category(part, rows) for part in _INSTANT_PARTS]
    data += [_line([limit / GIB] * 2, [y - 0.5, y + 0.5], "bad", "solid") for y, limit in enumerate(limits)]
    data.append(_totals(totals, limits, reach))
    layout = theme.layout(
        88 + 44 * len(rows),
        barmode="stack",
        bargap=0.3,
        xaxis=theme.axis("GiB", range=[0, reach / GIB]),
        yaxis=theme.rows_axis([theme.escape_label(label) for label, _ in rows]),
    )
    first = "instant" if key == "memory" else "set-up"
    columns = (first, *(CATEGORY_NAMES[part] for part in _INSTANT_PARTS), "together")
    table = [[label, *(bytes_text(parts.get(part, 0), zeros=True) for part in _INSTANT_PARTS)] for label, parts in rows]
    table = [[*cells, bytes_text(total, zeros=True)] for cells, total in zip(table, totals, strict=True)]
    room = " or ".join(dict.fromkeys(map(bytes_text, limits)))
    subtitle = f"Memory of the fullest rank, GiB; outlined = predicted; red line = the {room} a plan may fill"
    subtitle += "; longer bars are cut" if cut else ""
    return Chart(key, title, subtitle, SOURCE, {"data": data, "layout": layout}, columns, table)


def _category(part: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": CATEGORY_NAMES[part],
        "y": list(range(len(rows))),
        "x": [parts.get(part, 0) / GIB for _, parts in rows],
        "marker": theme.outlined(var(f"memory-{part}")),
        "hovertemplate": f"{CATEGORY_NAMES[part]}: %{{x:.3g}} GiB<extra></extra>",
    }


def _totals(totals: Sequence[float], limits: Sequence[float], reach: float) -> dict[str, Any]:
    """The totals as text: after their bar, or inside the end of one that is cut; never across the line of the limit."""
    beyond = [total > reach for total in totals]

    def places(word: float) -> list[float]:
        both = zip(totals, limits, strict=True)
        ends = (limit if total <= limit < total + word * reach else total for total, limit in both)
        return [min(end, reach) / GIB for end in ends]

    return {
        "type": "scatter",
        "mode": "text",
        "x": places(WORD),
        "y": list(range(len(totals))),
        "text": [
            f"<b>{bytes_text(t)} →</b> " if far else f" {bytes_text(t)}" for t, far in zip(totals, beyond, strict=True)
        ],
        "textposition": ["middle left" if far else "middle right" for far in beyond],
        "textfont": {"size": 12, "color": [var("ink") if far else var("ink-2") for far in beyond]},
        "meta": {"narrow": {"x": places(NARROW_WORD)}},
        "cliponaxis": False,
        "hoverinfo": "skip",
    }
