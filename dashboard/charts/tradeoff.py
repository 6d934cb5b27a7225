"""Time against memory: a point for each run, arrows from plain runs to the same with recomputation, the Pareto line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.charts import theme
from dashboard.charts.chart import Chart, Entry, named_by, pairs, row_labels, run_column
from dashboard.charts.labels import CHARACTER, GAP, legible, placed
from dashboard.charts.theme import line_of, var
from parallel_core.analysis.pareto import pareto_front
from parallel_core.analysis.quantities import apart_text, bytes_text, plural_text, seconds_text
from parallel_core.analysis.sentences import also_close
from parallel_core.analysis.stats import speedup

MIB = 1 << 20
NEAR = 0.06
"""As a part of either axis: labels closer than this would overlap."""
ROOM = 1.15
"""As a factor of the greatest value, so that names next to the points have room."""
MOST_ROOM = 1.4
"""The same, where a point at the edge has a long name."""
WIDTH, HEIGHT = 1040.0, 290.0
"""Pixels between the axes where the chart is as wide as the page."""
HALF, NARROW = 400.0, 250.0
"""That width next to another chart, and on a phone."""
COLUMNS = ("worst-rank memory", "best trade")
"""Behind the run and its step."""

Point = tuple[Entry, float, float]
"""(entry, ms a step, MiB)."""


def chart(entries: Sequence[Entry], source: str) -> Chart:
    points = [
        (e, e.result.step.median * 1e3, sum(e.result.memory.values()) / MIB)
        for e in entries
        if e.done and e.result and e.result.memory
    ]
    best, (step, scaling) = pareto(points), _scaling([entry for entry, _, _ in points])
    figure = {
        "data": [_line(best), *([_arrows(points)] if _pairs(points) else []), _dots(points)] if points else [],
        "layout": theme.layout(
            360,
            xaxis=theme.axis(f"ms a {step} (left is faster)", range=[0, _widest(points)]),
            yaxis=theme.axis("MiB on the worst rank (down is less)", range=[0, _highest(points)]),
            hovermode="closest",
        ),
    }
    subtitle = (
        f"Step time against worst-rank memory{scaling}; arrow: plain to recomputation; line: no run beats these in both"
    )
    subtitle += f"; names: {fields}" if (fields := named_by(entries)) else ""
    columns = (run_column(entries), step, *COLUMNS)
    return Chart("tradeoff", _title(points, best), subtitle, source, figure, columns, _rows(points, best))


def _rows(points: Sequence[Point], best: Sequence[Point]) -> list[list[str]]:
    return [
        [
            e.in_table,
            seconds_text(ms / 1e3, zeros=True),
            bytes_text(mib * MIB, zeros=True),
            "yes" if any(e is b for b, _, _ in best) else "",
        ]
        for e, ms, mib in points
    ]


def _scaling(entries: Sequence[Entry]) -> tuple[str, str]:
    """What a step is called, and for the subtitle which runs' times are scaled to it; "step" and '' if none are."""
    scaled = [entry for entry in entries if entry.scaled_to]
    if not scaled:
        return "step", ""
    step = f"step of {plural_text(scaled[0].scaled_to or 0, 'sample')}"
    return step, f"; a {step}, scaled for {len(scaled)} of {len(entries)} runs whose batch is another"


def pareto(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in both measures, fastest first."""
    return pareto_front(points, lambda point: (point[1], point[2]))


def _title(points: Sequence[Point], best: Sequence[Point]) -> str:
    if not points:
        return "0 runs have both a time and a memory."
    names = apart_text([e.label for e, _, _ in best[:4]]) + (" and more" if len(best) > 4 else "")
    verb = "is" if len(best) == 1 else "are"
    return f"{len(best)} of {len(points)} {verb} beaten by none in both time and memory: {names}{_close(points, best)}."


def _close(points: Sequence[Point], best: Sequence[Point]) -> str:
    """How many others may be as good as one of the best: its memory is as large, and its time within noise."""
    front = {id(entry) for entry, _, _ in best}
    written = [(point, bytes_text(point[2] * MIB)) for point in points]  # each once: of many runs, pairs are very many
    others = [one for one in written if id(one[0][0]) not in front]
    beaten = (any(_beats(*each, *one) for each in written if each is not one) for one in others)
    return also_close([one[0].label for (one, _), known in zip(others, beaten, strict=True) if not known])


def _beats(one: Point, memory: str, other: Point, its_memory: str) -> bool:
    """Whether one takes less memory, as it is written, in no more time, or no more memory in less time beyond noise."""
    if one[1] > other[1] or not (one[2] < other[2] or memory == its_memory):
        return False
    if one[2] < other[2] and memory != its_memory:
        return True
    a, b = one[0].result, other[0].result
    return one[1] < other[1] and a is not None and b is not None and not speedup(b.step, a.step).within_noise


def _pairs(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    place = {id(point[0]): point for point in points}
    return [(place[id(a)], place[id(b)]) for a, b in pairs([entry for entry, _, _ in points])]


def _line(best: Sequence[Point]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [ms for _, ms, _ in best],
        "y": [mib for _, _, mib in best],
        "line": {"color": var("ink-2"), "width": 1, "dash": "dot", "shape": "linear"},
        "hoverinfo": "skip",
    }


def _arrows(points: Sequence[Point]) -> dict[str, Any]:
    xs: list[float | None] = []
    ys: list[float | None] = []
    for (_, x0, y0), (_, x1, y1) in _pairs(points):
        xs += [x0, x1, None]
        ys += [y0, y1, None]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": xs,
        "y": ys,
        "line": {"color": var("line-strong"), "width": 1.25},
        "marker": {
            "symbol": "arrow",
            "angleref": "previous",
            "size": [0, 11, 0] * (len(xs) // 3),
            "color": var("line-strong"),
            "standoff": [0, 6, 0] * (len(xs) // 3),
        },
        "hoverinfo": "skip",
    }


def _dots(points: Sequence[Point]) -> dict[str, Any]:
    colours = [line_of(e.family) for e, _, _ in points]
    names = row_labels([e.name for e, _, _ in points])
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [ms for _, ms, _ in points],
        "y": [mib for _, _, mib in points],
        **_texts(_spots(points, names, WIDTH), WIDTH),
        "meta": {
            "half": _texts(_spots(points, names, HALF), HALF),
            "narrow": _texts(_spots(points, _labels(points), NARROW), NARROW),
        },
        "textfont": {"size": 12, "color": var("ink")},
        "marker": {
            "size": 10,
            "symbol": ["circle-open" if e.recompute else "circle" for e, _, _ in points],
            "color": colours,
            "line": {"width": 2, "color": colours},
        },
        "customdata": [theme.escape_label(e.label) for e, _, _ in points],
        "hovertemplate": "%{customdata}: %{x:.1f} ms, %{y:.1f} MiB<extra></extra>",
        "cliponaxis": False,
    }


def _texts(spots: list[tuple[float, float, str]], width: float) -> dict[str, list[str]]:
    """The names that are legible in a chart of that width, and their positions; hover and table have all names."""
    sides = placed(spots, width, HEIGHT)
    return {"text": legible(spots, sides), "textposition": sides}


def _widest(points: Sequence[Point]) -> float:
    """End of the ms axis: on a wide screen, every name has room to the right of its point."""
    greatest = max((ms for _, ms, _ in points), default=1) or 1.0
    ends = (ms * WIDTH / max(1.0, WIDTH - GAP - CHARACTER * len(entry.name)) for entry, ms, _ in points)
    return min(MOST_ROOM * greatest, max([ROOM * greatest, *ends]))


def _highest(points: Sequence[Point]) -> float:
    """End of the MiB axis."""
    return ROOM * (max((mib for _, _, mib in points), default=1) or 1.0)


def _spots(points: Sequence[Point], names: Sequence[str], width: float) -> list[tuple[float, float, str]]:
    """(x, y, name) of the points in a chart of that width, in pixels from the left and from the top."""
    widest, highest = _widest(points), _highest(points)
    return [
        (width * ms / widest, HEIGHT * (1 - mib / highest), name)
        for (_, ms, mib), name in zip(points, names, strict=True)
    ]


def _labels(points: Sequence[Point]) -> list[str]:
    """Names on a phone: of points close together, the first has its name and the number of the others, the rest have
    none."""
    width, height = max((p[1] for p in points), default=1) or 1, max((p[2] for p in points), default=1) or 1
    out, labels = [""] * len(points), row_labels([entry.name for entry, _, _ in points])
    anchors: list[tuple[int, list[str]]] = []
    for i, (_, x, y) in enumerate(points):
        near = next(
            (
                names
                for j, names in anchors
                if abs(points[j][1] - x) < 2 * NEAR * width and abs(points[j][2] - y) < NEAR * height
            ),
            None,
        )
        if near is None:
            anchors.append((i, [labels[i]]))
        else:
            near.append(labels[i])
    for i, names in anchors:
        more = f" +{len(names) - 1}" if len(names) > 1 else ""
        out[i] = names[0] + more
    return out
