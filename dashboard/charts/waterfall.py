"""From run A to run B: which component of the step saved or cost how much."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from dashboard.charts import theme
from dashboard.charts.breakdown import PARTS, milliseconds
from dashboard.charts.chart import Chart
from dashboard.charts.theme import var
from parallel_core.analysis.breakdown import Breakdown
from parallel_core.analysis.quantities import minus_text, significant
from parallel_core.analysis.sentences import difference_sentence

ROOM = 1.12
"""Of the farthest bar's end, so that its number has room beside it."""


def stair(
    values: Sequence[float], texts: Sequence[str], words: Sequence[str], *, rising: str, falling: str, unit: str = ""
) -> dict[str, Any]:
    """A row for each of `values`, from the first through changes to the last; `rising` and `falling` name hues, and
    `words` what a row is."""
    return {
        "type": "waterfall",
        "orientation": "h",
        "y": list(range(len(values))),
        "x": list(values),
        "measure": ["absolute", *["relative"] * (len(values) - 2), "total"],
        "text": list(texts),
        "textposition": "outside",
        "textfont": {"color": var("ink")},
        "connector": {"line": {"color": var("line-strong"), "width": 1}},
        "increasing": {"marker": {"color": var(rising)}},
        "decreasing": {"marker": {"color": var(falling)}},
        "totals": {"marker": {"color": var("bar")}},
        "customdata": list(words),
        "hovertemplate": f"%{{customdata}}: %{{text}}{unit}<extra></extra>",
        "cliponaxis": False,
    }


def reach(values: Sequence[float]) -> list[float]:
    """The axis of a stair: as far as any of its bars goes, with room for a number."""
    return [0.0, ROOM * (max(accumulate(values[:-1])) or 1.0)]


def chart(a: Breakdown, b: Breakdown, names: tuple[str, str], source: str) -> Chart:
    """Both are means over the ranks of one traced step; `names` of A and B, unescaped."""
    changes = [(word, milliseconds(b, fields) - milliseconds(a, fields)) for word, fields, _ in PARTS]
    values = [a.total / 1e6, *(change for _, change in changes), b.total / 1e6]
    words = [f"A: {theme.name(names[0])}", *(word for word, _ in changes), f"B: {theme.name(names[1])}"]
    texts = [
        significant(values[0]),
        *(minus_text(f"{change:+.1f}") if abs(change) >= 0.05 else "0" for _, change in changes),
        significant(values[-1]),
    ]
    trace = stair(values, texts, words, rising="bad", falling="accent", unit=" ms")
    layout = theme.layout(
        330, xaxis=theme.axis("ms", range=reach(values)), yaxis=theme.rows_axis(words), waterfallgap=0.3
    )
    rows = [[word, significant(milliseconds(a, f)), significant(milliseconds(b, f))] for word, f, _ in PARTS]
    rows.append(["step", significant(a.total / 1e6), significant(b.total / 1e6)])
    subtitle = "Change of each part of the traced step from A to B, ms"
    figure = {"data": [trace], "layout": layout}
    return Chart("waterfall", difference_sentence(a, b), subtitle, source, figure, ("part", "A, ms", "B, ms"), rows)
