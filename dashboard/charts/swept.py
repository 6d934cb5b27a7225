"""What runs reached against the values of the fields in which they differ: which value is best, and how much depends on
it. Two fields are a heat map; of one, or of more, each has its values side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dashboard.charts import swept_title, theme
from dashboard.charts.chart import ALL, Chart
from dashboard.charts.swept_title import Field, Quantity, Tried, best_of_each, value_of
from dashboard.charts.theme import escape_label, var
from parallel_core.analysis.quantities import listed_text, plural_text

ROW_PX = 36
HEIGHT = 330
MOST_TEXTS = 12
"""The most columns of a heat map whose cells have room for their numbers."""
FAR = 2.0
"""Cells whose value is further above the best than so many times the median is all have the last colour."""
GAP = 1
"""Between the values of two fields, in widths of one."""


def chart(fields: Sequence[Field], tried: Sequence[Tried], quantity: Quantity, source: str) -> Chart:
    """At least one field and one run with a value."""
    known = [one for one in tried if one.value is not None]
    best = min(known, key=value_of)
    figure = _heat_map(fields, tried, best, quantity) if len(fields) == 2 else _side_by_side(fields, known, quantity)
    columns = (*(field.label for field in fields), "run", quantity.name)
    ordered = sorted(tried, key=lambda one: (one.value is None, one.value or 0.0))
    rows = [
        [*(field.values[at] for field, at in zip(fields, one.places, strict=True)), one.label, _said(one, quantity)]
        for one in ordered
    ]
    how = "most colour = best, framed" if len(fields) == 2 else "a mark a run, a line through the best of each value"
    subtitle = "; ".join(filter(None, (f"{quantity.name.capitalize()}; {how}", _edges(fields, best))))
    title = swept_title.title(fields, tried, best, quantity)
    above = 0 if len(fields) == 2 else _above(known)
    source += f", {len(known)} of {plural_text(len(tried), 'run')}"
    source += f", {above} of them above this view{ALL}" if above else ""
    return Chart("swept", title, subtitle, source, figure, columns, rows)


def _said(one: Tried, quantity: Quantity) -> str:
    return one.why if one.value is None else quantity.text(one.value)


def _edges(fields: Sequence[Field], best: Tried) -> str:
    """The fields whose best value is the first or the last of three or more: a better one may lie beyond."""
    at_end = [
        field.label
        for field, at in zip(fields, best.places, strict=True)
        if field.ordered and len(field.values) > 2 and _beyond(field, at)
    ]
    return f"the best {listed_text(at_end)} is at an end of what was tried: try values beyond" if at_end else ""


def _beyond(field: Field, at: int) -> bool:
    """Whether that value is the first or the last, with others to try behind it."""
    before, after = field.beyond
    return (before and at == 0) or (after and at == len(field.values) - 1)


def _heat_map(fields: Sequence[Field], tried: Sequence[Tried], best: Tried, quantity: Quantity) -> dict[str, Any]:
    """The field with more values downwards, as on a phone there is more room."""
    down, across = sorted((0, 1), key=lambda i: -len(fields[i].values))
    cells: dict[tuple[int, int], list[Tried]] = {}
    for one in tried:
        cells.setdefault((one.places[down], one.places[across]), []).append(one)
    places = [[(y, x) for x in range(len(fields[across].values))] for y in range(len(fields[down].values))]
    lows = {place: _lowest(runs) for place, runs in cells.items()}
    trace = {
        "type": "heatmap",
        "x": list(range(len(fields[across].values))),
        "y": list(range(len(fields[down].values))),
        "z": [[lows.get(place) for place in row] for row in places],
        "text": [[_cell(cells.get(place, ()), lows.get(place), quantity) for place in row] for row in places],
        "customdata": [[_hover(place, fields, (down, across), cells, lows, quantity) for place in r] for r in places],
        "hovertemplate": "%{customdata}<extra></extra>",
        **_scale([low for low in lows.values() if low is not None]),
        "xgap": 2,
        "ygap": 2,
    }
    if len(fields[across].values) <= MOST_TEXTS:
        trace |= {"texttemplate": "%{text}", "textfont": {"size": 12, "color": var("ink")}}
        trace["meta"] = {"narrow": {"textfont": {"size": 10, "color": var("ink")}}}
    layout = theme.layout(
        ROW_PX * len(fields[down].values) + 64,
        xaxis=_values_axis(fields[across].label, fields[across].values),
        yaxis=theme.rows_axis([escape_label(field) for field in fields[down].values])
        | {"title": theme.axis(escape_label(fields[down].label))["title"]},
    )
    return {"data": [trace, _ring(best.places[across], best.places[down])], "layout": layout}


def _scale(values: Sequence[float]) -> dict[str, Any]:
    """The colours of cells with these values, of which those far above the best share the last one."""
    known = sorted(values)
    least, middle = known[0], known[len(known) // 2]
    return {
        "colorscale": [[0, var("heat-best")], [1, var("sunken")]],
        "zmin": least,
        "zmax": max(min(known[-1], least + FAR * (middle - least)), least + 1e-12),
        "showscale": False,
    }


def _lowest(runs: Sequence[Tried]) -> float | None:
    """What the best of the runs of one cell reached, as in the title: by a mean another cell might be the best."""
    return min((one.value for one in runs if one.value is not None), default=None)


def _cell(runs: Sequence[Tried], lowest: float | None, quantity: Quantity) -> str:
    if lowest is not None:
        return quantity.text(lowest)
    return escape_label(runs[0].why) if runs else ""


def _hover(
    place: tuple[int, int],
    fields: Sequence[Field],
    axes: tuple[int, int],
    cells: dict[tuple[int, int], list[Tried]],
    lows: dict[tuple[int, int], float | None],
    quantity: Quantity,
) -> str:
    runs, lowest = cells.get(place, []), lows.get(place)
    where = ", ".join(escape_label(fields[i].at(at)) for i, at in zip(axes, place, strict=True))
    several = f", best of {len(runs)} runs" if lowest is not None and len(runs) > 1 else ""
    return f"{where}: {_cell(runs, lowest, quantity) or 'not tried'}{several}"


def _ring(x: int, y: int) -> dict[str, Any]:
    """Marks the best cell also where colours are not seen."""
    across, down = (x - 0.5, x + 0.5), (y - 0.5, y + 0.5)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [across[0], across[1], across[1], across[0], across[0]],
        "y": [down[0], down[0], down[1], down[1], down[0]],
        "line": {"color": var("ink"), "width": 2},
        "hoverinfo": "skip",
    }


def _values_axis(title: str, values: Sequence[str], places: Sequence[int] | None = None) -> dict[str, Any]:
    at = list(places if places is not None else range(len(values)))
    words = [escape_label(value) for value in values]
    ends = {"range": [-0.6, at[-1] + 0.6], "showgrid": False, "zeroline": False}
    return theme.axis(escape_label(title), tickvals=at, ticktext=words, **ends)


def _side_by_side(fields: Sequence[Field], known: Sequence[Tried], quantity: Quantity) -> dict[str, Any]:
    """Each field's values on one axis, one field behind the other."""
    starts = list(_starts(fields))
    best = [best_of_each(i, known) for i in range(len(fields))]
    dots = {
        "type": "scatter",
        "mode": "markers",
        "x": [start + one.places[i] for i, start in enumerate(starts) for one in known],
        "y": [quantity.scale * value_of(one) for _ in starts for one in known],
        "customdata": [f"{escape_label(one.label)}: {_said(one, quantity)}" for _ in starts for one in known],
        "marker": {"size": 7, "color": var("line-strong"), "opacity": 0.7},
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": _joined([start + at for at in own] for start, own in zip(starts, best, strict=True)),
        "y": _joined([quantity.scale * value_of(one) for one in own.values()] for own in best),
        "line": {"color": var("accent"), "width": 2},
        "hoverinfo": "skip",
    }
    return {"data": [dots, line], "layout": _layout(fields, starts, known, quantity)}


def _layout(
    fields: Sequence[Field], starts: Sequence[int], known: Sequence[Tried], quantity: Quantity
) -> dict[str, Any]:
    """The name of a field stands below its values, or above them where there are several."""
    values = [value for field in fields for value in field.values]
    places = [start + at for field, start in zip(fields, starts, strict=True) for at in range(len(field.values))]
    xaxis = _values_axis(fields[0].label if len(fields) == 1 else "", values, places)
    layout = theme.layout(HEIGHT, xaxis=xaxis, yaxis=theme.axis(quantity.axis or quantity.name, zeroline=False))
    if len(fields) > 1:
        layout["margin"] |= {"t": 56}
        layout["annotations"] = [_name(field, start) for field, start in zip(fields, starts, strict=True)]
    if (top := _top(known)) is not None:
        layout["yaxis"] |= {"range": [quantity.scale * end for end in (_bottom(known), top)], "autorange": False}
        layout["meta"] = {"above": _above(known)}  # the page offers a button that shows them
    return layout


def _name(field: Field, start: int) -> dict[str, Any]:
    """The field's name over its values, a word a line."""
    where = {"x": start + (len(field.values) - 1) / 2, "y": 1.02, "yref": "paper", "yanchor": "bottom"}
    font = {"size": 12, "color": var("ink-2")}
    return {**where, "text": escape_label(field.label).replace(" ", "<br>"), "showarrow": False, "font": font}


def _starts(fields: Sequence[Field]) -> Iterator[int]:
    at = 0
    for field in fields:
        yield at
        at += len(field.values) + GAP


def _joined(parts: Iterable[Sequence[Any]]) -> list[Any]:
    """The parts with a gap after each."""
    return [value for part in parts for value in (*part, None)]


def _bottom(known: Sequence[Tried]) -> float:
    values = sorted(map(value_of, known))
    return values[0] - 0.1 * (values[len(values) // 2] - values[0])


def _top(known: Sequence[Tried]) -> float | None:
    """Where the axis ends if some runs are so far above the others that these would be pressed together; else None."""
    values = sorted(map(value_of, known))
    end = values[0] + 2 * FAR * (values[len(values) // 2] - values[0])
    return end if values[-1] > end > values[0] else None


def _above(known: Sequence[Tried]) -> int:
    """How many runs lie above the first view."""
    top = _top(known)
    return 0 if top is None else sum(value_of(one) > top for one in known)
