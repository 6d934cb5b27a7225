"""From run A to run B: how much each component of the step saved or cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from dashboard.charts import theme
from dashboard.charts.breakdown import milliseconds
from dashboard.charts.chart import Chart, row_labels
from dashboard.charts.theme import var
from parallel_core.analysis.breakdown import DIFFERENCES, Breakdown
from parallel_core.analysis.quantities import minus_text, significant
from parallel_core.analysis.sentences import difference_sentence

ROOM = 1.12
"""As a factor of the farthest bar's end, to leave room for its number."""

NARROW_ROOM = 1.34
"""The same on a phone, where a number takes a larger part of the width."""

GAP = 0.3
"""Space between two rows, as a part of a row."""


def stair(
    values: Sequence[float], texts: Sequence[str], words: Sequence[str], *, rising: str, falling: str, unit: str = ""
) -> list[dict[str, Any]]:
    """The traces of a waterfall: a bar for the first value, for each change, and for the last value, and lines between
    them.

    `texts` are written at the bars, `words` name them in the hover text; `rising` and `falling` name colours.
    """
    ends = [*accumulate(values[:-1]), values[-1]]
    begins = [0.0, *ends[:-2], 0.0]
    hues = ["bar", *(rising if change > 0 else falling for change in values[1:-1]), "bar"]
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": list(range(len(values))),
        "base": [min(ends_of) for ends_of in zip(begins, ends, strict=True)],
        "x": [abs(end - begin) for begin, end in zip(begins, ends, strict=True)],
        "marker": {"color": [var(hue) for hue in hues]},
        "text": list(texts),
        "textposition": "outside",
        "textfont": {"color": var("ink")},
        "customdata": list(words),
        "hovertemplate": f"%{{customdata}}: %{{text}}{unit}<extra></extra>",
        "cliponaxis": False,
    }
    return [bars, _treads(ends)]


def _treads(ends: Sequence[float]) -> dict[str, Any]:
    """Lines from the end of each bar to where the next one begins."""
    half = (1 - GAP) / 2
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [x for end in ends[:-1] for x in (end, end, None)],
        "y": [y for row in range(len(ends) - 1) for y in (row + half, row + 1 - half, None)],
        "line": {"color": var("line-strong"), "width": 1},
        "hoverinfo": "skip",
    }


def layout_of(values: Sequence[float], words: list[str], title: str) -> dict[str, Any]:
    """The layout of the traces of `stair`: its axis reaches as far as the bars go, with room for a number; also on a
    phone. `words` name the rows, `title` the axis."""
    farthest = max(accumulate(values[:-1])) or 1.0
    return theme.layout(
        330,
        xaxis=theme.axis(title, range=[0.0, ROOM * farthest]),
        yaxis=theme.rows_axis(words),
        bargap=GAP,
        meta={"narrow": {"xaxis": {"range": [0.0, NARROW_ROOM * farthest]}}},
    )


def _texts(first: float, changes: Sequence[float], last: float) -> list[str]:
    """The two values with the changes between them, which have signs: all with as many decimals as three digits of the
    largest have; '0' where a change rounds to nothing."""
    largest = max(first, *changes, last)
    decimals = max(0, 2 - math.floor(math.log10(largest))) if largest > 0 else 0
    texts = [f"{change:+.{decimals}f}" for change in changes]
    signed = [minus_text(text) if float(text) else "0" for text in texts]
    return [f"{first:.{decimals}f}", *signed, f"{last:.{decimals}f}"]


def chart(a: Breakdown, b: Breakdown, names: tuple[str, str], source: str) -> Chart:
    """`a` and `b` are means over the ranks of one traced step; `names` of A and B are not escaped."""
    changes = [(word, milliseconds(b, fields) - milliseconds(a, fields)) for word, fields in DIFFERENCES]
    values = [a.total / 1e6, *(change for _, change in changes), b.total / 1e6]
    first, second = row_labels(names)
    words = [f"A: {first}", *(word for word, _ in changes), f"B: {second}"]
    traces = stair(
        values, _texts(values[0], values[1:-1], values[-1]), words, rising="bad", falling="accent", unit=" ms"
    )
    layout = layout_of(values, words, "ms")
    rows = [[word, *(significant(milliseconds(one, f), zeros=True) for one in (a, b))] for word, f in DIFFERENCES]
    rows.append(["step", *(significant(one.total / 1e6, zeros=True) for one in (a, b))])
    subtitle = "Change of each part of the traced step from A to B, ms"
    figure = {"data": traces, "layout": layout}
    return Chart("waterfall", difference_sentence(a, b), subtitle, source, figure, ("part", "A, ms", "B, ms"), rows)
