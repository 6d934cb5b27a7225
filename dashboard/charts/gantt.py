"""Gantt charts of traced steps on one axis in ms: one row a rank, phase colours, micro-batch numbers in the bars.

A rank's step is a hatched (idle) bar; what the rank did is drawn over it, so that what stays visible is the bubble.
Blocking work fills the row. Two thin lanes hold what is not work while it waits: messages at the foot of the row,
collectives in flight (the norm, gradient buckets, tensor-parallel ones behind computation) at its head. Where it is
known which rank waited for which, a collective begins when its last rank arrived and a receive when its send began;
before that the row is idle, as in the accounts of `analysis.breakdown`.

What was measured is filled; what is predicted is outlined in the colour of its phase.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.charts import theme
from dashboard.charts.chart import Chart, row_labels
from dashboard.charts.gantt_bars import BAR, Spans, bars, inside, length, longest, number_room
from dashboard.charts.gantt_waits import LEAST_WAIT, WAITING, cut
from dashboard.charts.gantt_words import MEASURED, TRACED, Words, hover, number, waits_in
from dashboard.charts.theme import Figure, var
from dashboard.charts.updates import of_one
from parallel_core.analysis.breakdown import phases
from parallel_core.analysis.quantities import count_text, significant
from parallel_core.analysis.waits import Waited, among, step_start
from parallel_core.schedule.ir import FLIGHTS, P2P, Kind

ROW_PX = 56
GAP = 0.4
"""Space between two runs, in rows."""
MAX_BARS = 2_000
"""The most bars that a figure draws: of more, the longest are kept and the caption says "N of M"."""

MANY = 400
"""From this many bars on, static/js/chart_bars.js paints them: the chart library needs 0.2 to 0.3 ms for each."""

HEAD = FLIGHTS | {Kind.NORM}
FULL, STRIP = 0.68, 0.13
LEAST_DIGIT = 0.006
"""Width of a digit in a figure of 1 000 pixels, as a part of the window."""


def figure(
    spans_by_rank: Spans, label: str = "", *, max_bars: int = MAX_BARS, waited: Mapping[int, Waited] | None = None
) -> Figure:
    """The figure of one run. `layout.meta` has the numbers of bars `shown` and in `total`, and `zooms`, for which the
    page has buttons. `layout.xaxis.range` is [0, step in ms]."""
    return figure_of([(label, spans_by_rank)], max_bars=max_bars, waited=[waited or {}])


def figure_of(
    runs: Sequence[tuple[str, Spans]],
    *,
    max_bars: int = MAX_BARS,
    words: Words = MEASURED,
    window: tuple[float, float] | None = None,
    waited: Sequence[Mapping[int, Waited]] = (),
    places: Mapping[int, str] | None = None,
    predicted: Collection[int] = (),
) -> Figure:
    """The figure of several runs, each aligned at the start of its step (the earliest instant of any of its ranks).

    `window` = (from, to) in ms: bars outside it are left out, but the axis is always that of the whole step. `waited` =
    for each run, who waited for whom in its rows; {} (or none) where that is not known. `places` = a few words on where
    each rank of the only run is placed. `predicted` = the positions of the runs that were not measured.
    """
    rows, ticks, height = _rows(runs, words.row, places or {})
    found = [bars(spans, rows[i], waits, window) for i, (_, spans, waits) in enumerate(_with_waits(runs, waited))]
    for i in predicted:
        found[i]["predicted"] = True
    table = np.concatenate(found) if found else np.empty(0, BAR)
    kept = longest(table, max_bars)
    span_ms = max((length(spans) / 1e6 for _, spans in runs), default=0) or 1.0
    data = _data(kept, span_ms, window, words)
    layout = _layout(words.axis, span_ms, ticks, height)
    layout["meta"] = {
        "zooms": True,
        "shown": len(kept),
        "inside": len(table),
        "total": sum(len(rows) for _, own in runs for rows in own.values()),
    }
    return {"data": data, "layout": layout}


def _layout(title: str, span_ms: float, ticks: Sequence[tuple[float, str]], height: float) -> dict[str, Any]:
    """The layout: the whole step across; rows labelled by `ticks` (y, text), the last of which ends at `height`."""
    return theme.layout(
        int(ROW_PX * height) + 56,
        barmode="overlay",
        bargap=0,
        uniformtext={"minsize": 9, "mode": "hide"},
        xaxis=theme.axis(title, range=[0, span_ms * 1.005], zeroline=False),
        yaxis={
            **theme.rows_axis([text for _, text in ticks]),
            "tickvals": [y for y, _ in ticks],
            "range": [height - 0.45, -0.55],
        },
    )


def _data(
    kept: NDArray[np.void], span_ms: float, window: tuple[float, float] | None, words: Words
) -> list[dict[str, Any]]:
    """One Plotly trace for each phase, another where it is predicted, and one for waits drawn over them."""
    shown_ms = window[1] - window[0] if window else span_ms
    least = LEAST_DIGIT * shown_ms if window else 0.0
    waits = cut(kept, LEAST_WAIT * shown_ms)
    kept["room"] = number_room(kept, waits, 2 * LEAST_DIGIT * span_ms)
    phases = np.array(["idle" if row["idle"] else theme.phase_of(int(row["kind"])) for row in kept])
    done = [(phase, predicted) for phase in _PHASES for predicted in (False, True)]
    groups = [(phase, kept[(phases == phase) & (kept["predicted"] == predicted)]) for phase, predicted in done]
    groups = [("idle", kept[phases == "idle"]), *groups, (WAITING, waits)]
    return [_trace(phase, own, words, least) for phase, own in groups if len(own)]


def _with_waits(
    runs: Sequence[tuple[str, Spans]], waited: Sequence[Mapping[int, Waited]]
) -> list[tuple[str, Spans, Mapping[int, Waited]]]:
    return [(*run, waited[i] if i < len(waited) else {}) for i, run in enumerate(runs)]


def chart(
    runs: Sequence[tuple[str, Spans]],
    title: str,
    source: str,
    *,
    key: str = "gantt",
    window: tuple[float, float] | None = None,
    waited: Sequence[Mapping[int, Waited]] = (),
    places: Mapping[int, str] | None = None,
    what: str = TRACED,
    predicted: Collection[int] = (),
    words: Words = MEASURED,
) -> Chart:
    """The figure with its words and a table of ms by phase and rank; only of `window` (ms) where that is given.

    `what` says in the subtitle what is drawn, e.g. a step that was not traced; `predicted` as in `figure_of`.
    """
    made = figure_of(runs, words=words, window=window, waited=waited, places=places, predicted=predicted)
    made["layout"]["meta"]["canvas"] = window is not None or made["layout"]["meta"]["shown"] >= MANY
    part = f"; {counted(made['layout']['meta'])}"
    subtitle = (
        f"{what}, {words.unit} from its start; above a row collectives in flight, below it messages; "
        f"numbers are micro-batches, hatched is idle{' or waiting' if any(waited) else ''}"
        f"{', outlined = predicted' if predicted else ''}"
    )
    ending = f", {words.unit}{' in view' if window else ''}"
    columns = ("run", "rank", *(f"{heading}{ending}" for _, heading in _columns(any(waited))))
    unnamed = int(not any(label for label, _ in runs))
    table = [row[unnamed:] for row in _table(runs, window, waited)]
    return Chart(key, title, subtitle, source + part, made, columns[unnamed:], table)


def counted(meta: Mapping[str, int]) -> str:
    """Says how many spans are drawn, of how many."""
    shown, inside, total = meta["shown"], meta["inside"], meta["total"]
    if shown < inside:
        return f"the {count_text(shown)} longest of {count_text(inside)} spans drawn"
    if inside == total:
        return f"{count_text(shown)} of {count_text(total)} spans"
    return f"all {count_text(inside)} spans in view, of {count_text(total)}"


_PHASES = ("forward", "backward", "weight", "recompute", "communication", "optimizer", "other")
COLUMNS = (
    *((phase, phase) for phase in ("forward", "backward", "weight", "recompute")),
    ("communication", "communication not hidden"),
    *((phase, phase) for phase in ("optimizer", "other")),
    ("waiting", "waiting in messages and collectives"),
    ("idle", "idle"),
)
"""(phase of `analysis.breakdown.phases`, heading) of the table."""
_ON = {"forward": "on-forward", "backward": "on-backward", "weight": "on-weight", "recompute": "on-forward"}
"""Colour of the numbers in bars whose fill needs another than the usual one."""


def below(figure: Figure, pixels: int, unit: str) -> None:
    """Makes room below the rows for curves on the same horizontal axis; the caller draws them on `yaxis="y2"`, in
    `unit`."""
    layout = figure["layout"]
    layout["height"] += pixels
    inner = layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]
    split = (pixels - 16) / inner
    layout["yaxis"]["domain"] = [split + 16 / inner, 1]
    layout["yaxis2"] = theme.axis(unit, domain=[0, split], rangemode="tozero", fixedrange=True, nticks=3, anchor="x")
    layout["xaxis"]["anchor"] = "y2"


def _rows(
    runs: Sequence[tuple[str, Spans]], row: str, named: Mapping[int, str]
) -> tuple[list[dict[int, float]], list[tuple[float, str]], float]:
    """Returns the y of each rank for each run, the labels of the rows as (y, text), and the figure's height in rows."""
    at, places, ticks = 0.0, [], []
    labels = row_labels([label for label, _ in runs])
    for label, (_, spans) in zip(labels, runs, strict=True):
        place = {}
        for i, rank in enumerate(sorted(spans)):
            place[rank] = at
            head = f"<b>{label}</b><br>" if label and i == 0 else ""
            foot = f"<br>{theme.small(named[rank])}" if rank in named else ""
            ticks.append((at, f"{head}{row} {rank}{foot}"))
            at += 1
        places.append(place)
        at += GAP
    return places, ticks, max(at - GAP, 1)


def _lanes(phase: str, rows: NDArray[np.void]) -> NDArray[np.int64]:
    """The lane of each bar: below its row (1), above it (-1) or in it (0).

    A norm whose waits are known is in the row: it is communication that blocks its rank.
    """
    head = among(rows, HEAD) & ~(among(rows, (Kind.NORM,)) & rows["known"])
    return np.where(phase == WAITING, 0, among(rows, P2P).astype(np.int64) - head)


def _trace(phase: str, rows: NDArray[np.void], words: Words, least: float) -> dict[str, Any]:
    """The Plotly trace of one phase, or of WAITING; `least` = width of a digit on the axis, in ms."""
    waits = phase == WAITING
    outlined = bool(rows["predicted"][0]) and phase not in ("idle", WAITING)
    kinds = [Kind(int(kind)) for kind in rows["kind"]]
    texts = ["" if waits else number(kind, row, least) for kind, row in zip(kinds, rows, strict=True)]
    said = [(waits_in if waits else hover)(*of, words) for of in zip(kinds, rows, strict=True)]
    rows, texts, said = _apart(rows, texts, said)
    lanes = _lanes(phase, rows)
    numbers: dict[str, Any] = {
        "text": texts,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": var("ink" if outlined else _ON.get(phase, "ink")), "size": 11},
    }
    begun: NDArray[np.float64] = rows["start"]
    over: NDArray[np.float64] = rows["end"]
    return {
        "type": "bar",
        "orientation": "h",
        "name": phase,
        "base": np.round(begun, 4).tolist(),
        "x": np.round(over - begun, 4).tolist(),
        "y": (rows["y"] + lanes * (FULL + STRIP) / 2).tolist(),
        "width": np.where(lanes != 0, STRIP, FULL).tolist(),
        **(numbers if any(texts) else {"textposition": "none"}),
        "marker": _marker(phase, outlined),
        "customdata": said,
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _apart(
    rows: NDArray[np.void], texts: Sequence[str], said: Sequence[str]
) -> tuple[NDArray[np.void], list[str], list[str]]:
    """The bars, their numbers and hover texts; a number that stands in a part of its bar has that part as a bar of its
    own, drawn over the whole, as a text stands in the middle of its bar."""
    whole = np.column_stack([rows["start"], rows["end"]])
    moved = [i for i in np.flatnonzero((rows["room"] != whole).any(axis=1)).tolist() if texts[i]]
    parts = rows[moved]
    parts["start"], parts["end"] = parts["room"].T
    gone = set(moved)
    kept = ["" if i in gone else text for i, text in enumerate(texts)]
    return np.concatenate([rows, parts]), kept + [texts[i] for i in moved], [*said, *(said[i] for i in moved)]


def _marker(phase: str, outlined: bool) -> dict[str, Any]:
    """Fill and outline of a phase, or of WAITING."""
    idle = phase in ("idle", WAITING)
    fill = theme.phase_fill("idle" if idle else phase)
    if outlined:
        return theme.outlined(fill)
    hatch = {"pattern": theme.hatch("/", "phase-idle-line", 6)} if idle else {}
    return {"color": fill, "line": {"width": 0.5, "color": var("surface")}, **hatch}


def _table(
    runs: Sequence[tuple[str, Spans]],
    window: tuple[float, float] | None,
    waited: Sequence[Mapping[int, Waited]],
) -> list[list[str]]:
    """Rows of ms by COLUMNS for each rank, which add up to the part of its step in view; `waiting` only if any run's
    waits are known, and '' for one whose are not."""
    out = []
    for label, spans, waits in _with_waits(runs, waited):
        zero = step_start(spans)
        within = None if window is None else (zero + round(window[0] * 1e6), zero + round(window[1] * 1e6))
        for rank, whole in sorted(spans.items()):
            every = of_one(whole, len(spans))
            chosen = np.ones(len(every), np.bool_) if window is None else inside(every, zero, window)
            own = Waited(*(column[chosen] for column in waits[rank])) if rank in waits else None
            spent: dict[str, int | None] = {**phases(every[chosen], own, within)}
            if own is None:
                spent["waiting"] = None
            cells = [spent[phase] for phase, _ in _columns(any(waited))]
            out.append([label, str(rank), *("" if ns is None else significant(ns / 1e6, zeros=True) for ns in cells)])
    return out


def _columns(known: bool) -> list[tuple[str, str]]:
    """COLUMNS, without waits unless they are `known`."""
    return [column for column in COLUMNS if known or column[0] != "waiting"]
