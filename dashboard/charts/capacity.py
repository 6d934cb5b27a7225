"""How large a model each strategy could hold: predicted layers as outlines, the layers that ran as solid bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard.charts import theme
from dashboard.charts.chart import Chart, Entry, row_height, rows_said, run_column, ticks
from dashboard.charts.theme import Figure, var
from parallel_core.analysis.quantities import count_text, listed_text, plural_text, ratio_text
from parallel_core.analysis.sentences import shortened
from parallel_core.limits import MAX_LAYERS
from parallel_core.plan.room import Room

_OUTSIDE = {"textposition": "outside", "textfont": {"size": 12, "color": var("ink-2")}, "cliponaxis": False}
_WIDE, _NARROW = 0.75, 0.45
"""Thickness of outlines and solid bars as a part of the row; an outline that ends inside a thinner solid bar stays
visible."""
COLUMNS = ("layers run", "largest predicted", "times the baseline")


def chart(entries: Sequence[Entry], room: Room | None) -> Chart:
    """Predicted layers against layers run. `room` on a device; only the number of layers differs from each run."""
    within = f" within {room.each}" if room else ""
    subtitle = f"Most layers that the worst rank holds{within}; outline = predicted, solid = run"
    subtitle += rows_said(entries)
    source = "predicted from parameters, gradients, optimizer state and activations; no model of that size was run"
    if any(e.largest is not None and e.largest > MAX_LAYERS for e in entries):
        source += f"; a spec may have at most {count_text(MAX_LAYERS)} layers"
    base = next((e.largest for e in entries if e.baseline), None)
    table = [_row(entry, base) for entry in entries]
    columns = (run_column(entries), *COLUMNS)
    return Chart("capacity", title(entries, room), subtitle, source, figure(entries), columns, table)


def figure(entries: Sequence[Entry], found: bool = False) -> Figure:
    """One row an entry: `largest` as an outline and, if the run is `done`, `layers` as a solid bar.

    The numbers are those of the outlines; with `found`, those of the layers that ran, and the prediction too where it
    differs; and a bar is filled only once its search is over, i.e. `status` is ''.
    """
    rows = [(y, e, e.largest) for y, e in enumerate(entries) if e.largest is not None]
    most = max([1, *(most for _, _, most in rows), *(e.layers for _, e, _ in rows if e.done)])
    return {
        "data": [_predicted(rows, found), _ran(rows, found)] if rows else [],
        "layout": theme.layout(
            row_height(len(entries)),
            barmode="overlay",
            xaxis=theme.axis("layers", range=[0, 1.2 * most], **({"dtick": 1} if most < 10 else {})),
            yaxis=theme.rows_axis(ticks(entries)),
        ),
    }


def title(entries: Sequence[Entry], room: Room | None) -> str:
    """The largest of the models that would fit, or why none is predicted."""
    known = [(e.largest, e) for e in entries if e.largest is not None]
    if not room:
        return "0 devices have reported their memory so far, so no largest model can be predicted."
    if not known:
        why = next((f": {e.no_largest}" for e in entries if e.no_largest), "")
        return f"0 of {plural_text(len(entries), 'run')} have a largest model{why}."
    most, best = max(known, key=lambda pair: pair[0])
    base = next((e for e in entries if e.baseline and e.largest is not None), None)
    layers = f"{count_text(most)} layer{'' if most == 1 else 's'} would fit with"
    text = f"{layers} {best.label}, predicted"
    if base is None or base.largest == most or not base.largest:
        equal = [e.label for own, e in known if own == most and e is not best]
        others = equal[0] if len(equal) == 1 else f"{len(equal)} others"
        alone = "" if len(known) == 1 else ", more than with any other run here"
        return f"{text}, as many as with {others}." if equal else f"{text}{alone}."
    who = listed_text(shortened([e.label for own, e in known if own == most]))
    times = f"{ratio_text(most / base.largest)} the {count_text(base.largest)} of {base.label}"
    return f"{layers} {who}, predicted: {times}."


def _number(entry: Entry, most: int, found: bool) -> str:
    if not found or (entry.done and entry.layers == most):
        return f" {count_text(most)}"
    ran = f" {count_text(entry.layers)}," if entry.done else ""
    return f"{ran} predicted {count_text(most)}"


def _predicted(rows: Sequence[tuple[int, Entry, int]], found: bool) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": "predicted",
        "y": [y for y, _, _ in rows],
        "x": [most for _, _, most in rows],
        "width": _WIDE,
        "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 1.5, "color": var("bar")}},
        "text": ["" if e.done and e.layers > most else _number(e, most, found) for _, e, most in rows],
        **_OUTSIDE,
        "hovertemplate": "predicted: %{x} layers<extra></extra>",
    }


def _ran(rows: Sequence[tuple[int, Entry, int]], found: bool) -> dict[str, Any]:
    """Solid bars. Where more layers ran than predicted, the number is at the end of this bar because it is the longer
    one."""
    ran = [(y, e.layers) for y, e, _ in rows if e.done]
    final = [not found or not e.status for _, e, _ in rows if e.done]
    return {
        "type": "bar",
        "orientation": "h",
        "name": "run",
        "y": [y for y, _ in ran],
        "x": [layers for _, layers in ran],
        "width": _NARROW,
        "marker": {
            "color": [var("bar") if over else "rgba(0,0,0,0)" for over in final],
            "line": {"width": 1, "color": var("bar")},
        },
        "text": [_number(e, most, found) if e.layers > most else "" for _, e, most in rows if e.done],
        **_OUTSIDE,
        "hovertemplate": "run: %{x} layers<extra></extra>",
    }


def _row(entry: Entry, base: int | None) -> list[str]:
    ran = str(entry.layers) if entry.done else ""
    if entry.largest is None:
        return [entry.in_table, ran, "not known", ""]
    return [entry.in_table, ran, count_text(entry.largest), ratio_text(entry.largest / base) if base else ""]
