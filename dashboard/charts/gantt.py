"""Traced steps as Gantts on one common axis in ms: a row a rank, phase colours, micro-batch numbers in the bars.

Each rank's step is laid down as a hatched (idle) bar; what the rank did is drawn over it, so that what stays visible
is the bubble. Blocking work fills the row, the compute lane. Messages are a strip at its foot, collectives in flight
(the norm, gradient buckets) one at its head: two more lanes, because waiting in them is not work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dashboard.charts import theme
from dashboard.charts.chart import Chart
from dashboard.charts.labels import covered
from dashboard.charts.theme import Figure, var
from dashboard.charts.updates import of_one
from parallel_core.analysis.quantities import bytes_text, significant
from parallel_core.analysis.waits import Waited, origin
from parallel_core.schedule.ir import COMPUTE, P2P, Kind
from parallel_core.schedule.text import WORDS

Spans = Mapping[int, NDArray[np.void]]
"""global rank -> SPAN rows of one step."""

ROW_PX = 56
GAP = 0.4
"""Rows between two runs."""
MAX_BARS = 2_000
"""Bars a figure draws; of more, the longest are kept and the caption says "N of M"."""

HEAD = frozenset({Kind.NORM, Kind.BUCKET})
HIDDEN = frozenset({Kind.STEP})
FULL, STRIP = 0.68, 0.13
FRAME = 0.98
"""Height of the frame around a span."""
LEAST_DIGIT = 0.006
"""Of the width of a window: what a digit takes in a figure of 1 000 pixels."""


class Words(NamedTuple):
    """What the numbers and the rows of a figure are called."""

    unit: str = "ms"
    axis: str = "ms from the start of the step"
    row: str = "rank"


MEASURED = Words()


def figure(spans_by_rank: Spans, label: str = "", *, max_bars: int = MAX_BARS) -> Figure:
    """One run. `layout.meta` = {"shown": N, "total": M} bars; `layout.xaxis.range` is [0, step in ms]."""
    return figure_of([(label, spans_by_rank)], max_bars=max_bars)


def figure_of(
    runs: Sequence[tuple[str, Spans]],
    *,
    max_bars: int = MAX_BARS,
    words: Words = MEASURED,
    window: tuple[float, float] | None = None,
    waited: Mapping[int, Waited] | None = None,
    places: Mapping[int, str] | None = None,
) -> Figure:
    """Several runs, each aligned at the start of its step (the earliest instant of any of its ranks).

    `window` = ms from and to: bars that lie outside are left out; the axis is the whole step's all the same.
    `waited` = who waited for whom in the rows of the only run, `places` = where its ranks stand, in a few words.
    """
    rows, ticks, height = _rows(runs, words.row, places or {})
    bars = [_bars(spans, rows[i], waited or {}, window) for i, (_, spans) in enumerate(runs)]
    table = np.concatenate(bars) if bars else np.empty(0, BAR)
    kept = _longest(table, max_bars)
    span_ms = max((length(spans) / 1e6 for _, spans in runs), default=0) or 1.0
    phases = np.array(["idle" if row["idle"] else theme.phase_of(int(row["kind"])) for row in kept])
    least = (window[1] - window[0]) * LEAST_DIGIT if window else 0.0
    kept["covered"] = covered(kept, kept[kept["kind"] == Kind.R], LEAST_DIGIT * span_ms)
    data = [_trace(phase, own, words, least) for phase in ("idle", *_PHASES) if len(own := kept[phases == phase])]
    layout = theme.layout(
        int(ROW_PX * height) + 56,
        barmode="overlay",
        bargap=0,
        uniformtext={"minsize": 9, "mode": "hide"},
        xaxis=theme.axis(words.axis, range=[0, span_ms * 1.005], zeroline=False),
        yaxis={
            **theme.rows_axis([text for _, text in ticks]),
            "tickvals": [y for y, _ in ticks],
            "range": [height - 0.45, -0.55],
        },
        meta={"shown": len(kept), "inside": len(table), "total": sum(len(r) for _, own in runs for r in own.values())},
    )
    return {"data": data, "layout": layout}


def chart(
    runs: Sequence[tuple[str, Spans]],
    title: str,
    source: str,
    key: str = "gantt",
    window: tuple[float, float] | None = None,
    waited: Mapping[int, Waited] | None = None,
    places: Mapping[int, str] | None = None,
) -> Chart:
    """The figure with its words and its numbers (busy ms by phase and rank); of `window` (ms) alone where given."""
    made = figure_of(runs, window=window, waited=waited, places=places)
    part = f"; {_counted(made['layout']['meta'])}"
    subtitle = (
        "One traced step, ms from its start; a row a rank: above it collectives in flight, below it messages; "
        "numbers are micro-batches, hatched is idle"
    )
    columns = ("run", "rank", *(f"{phase}, ms{' in view' if window else ''}" for phase in _PHASES))
    unnamed = int(not any(label for label, _ in runs))
    table = [row[unnamed:] for row in _table(runs, window)]
    return Chart(key, title, subtitle, source + part, made, columns[unnamed:], table)


def _counted(meta: Mapping[str, int]) -> str:
    """How many spans are drawn, of how many."""
    shown, inside, total = meta["shown"], meta["inside"], meta["total"]
    if shown < inside:
        return f"the {shown} longest of {inside} spans drawn"
    return f"{shown} of {total} spans" if inside == total else f"all {inside} spans in view, of {total}"


BAR = np.dtype(
    [
        ("kind", "u1"),
        ("y", "f8"),
        ("rank", "i4"),
        ("stage", "i2"),
        ("micro_batch", "i4"),
        ("version", "i4"),
        ("start", "f8"),
        ("end", "f8"),
        ("bytes", "i8"),
        ("waited", "f8"),  # ms
        ("for", "i4"),  # the rank it waited for
        ("idle", "?"),
        ("covered", "?"),  # no room for its number
    ]
)
_PHASES = ("forward", "backward", "weight", "recompute", "communication", "optimizer", "other")
_ON = {"forward": "on-forward", "backward": "on-backward", "weight": "on-weight", "recompute": "on-forward"}
"""Colour of the numbers in bars whose fill asks for one."""


def outline(row: int, begin: float, end: float) -> dict[str, Any]:
    """A frame around what stands in a row of the first run between two moments, ms."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": "lit",
        "base": [begin],
        "x": [end - begin],
        "y": [row],
        "width": [FRAME],
        "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 3, "color": var("accent")}},
        "hoverinfo": "skip",
    }


def below(figure: Figure, pixels: int) -> None:
    """Makes room for curves under the rows, on the same horizontal axis: they are drawn on `yaxis="y2"`."""
    layout = figure["layout"]
    layout["height"] += pixels
    inner = layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]
    split = (pixels - 16) / inner
    layout["yaxis"]["domain"] = [split + 16 / inner, 1]
    layout["yaxis2"] = theme.axis("", domain=[0, split], rangemode="tozero", fixedrange=True, nticks=3, anchor="x")
    layout["xaxis"]["anchor"] = "y2"


def _rows(
    runs: Sequence[tuple[str, Spans]], row: str, named: Mapping[int, str]
) -> tuple[list[dict[int, float]], list[tuple[float, str]], float]:
    """Where each rank of each run stands, the labels of the rows, and how many rows high the figure is."""
    at, places, ticks = 0.0, [], []
    for label, spans in runs:
        place = {}
        for i, rank in enumerate(sorted(spans)):
            place[rank] = at
            head = f"<b>{theme.name(label)}</b><br>" if label and i == 0 else ""
            foot = f"<br><sub>{named[rank]}</sub>" if rank in named else ""
            ticks.append((at, f"{head}{row} {rank}{foot}"))
            at += 1
        places.append(place)
        at += GAP
    return places, ticks, max(at - GAP, 1)


def inside(rows: NDArray[np.void], zero: int, window: tuple[float, float]) -> NDArray[np.bool_]:
    """Which rows touch the window, ms from `zero`."""
    low, high = (zero + side * 1e6 for side in window)
    return np.logical_and(rows["end"] >= low, rows["start"] <= high)


def length(spans: Spans) -> int:
    """Nanoseconds from the first instant to the last."""
    return max((int(rows["end"].max()) for rows in spans.values() if len(rows)), default=0) - origin(spans)


def _bars(
    spans: Spans, place: Mapping[int, float], waited: Mapping[int, Waited], window: tuple[float, float] | None
) -> NDArray[np.void]:
    parts, zero = [np.empty(0, BAR)], origin(spans)
    for rank, every in spans.items():
        chosen = slice(None) if window is None else inside(every, zero, window)
        rows = of_one(every, len(spans))[chosen]
        out = np.zeros(len(rows), BAR)
        out["kind"], out["micro_batch"], out["rank"] = rows["kind"], rows["micro_batch"], rank
        out["start"], out["end"] = (rows["start"] - zero) / 1e6, (rows["end"] - zero) / 1e6
        out["y"], out["idle"] = place[rank], rows["kind"] == Kind.STEP
        out["stage"], out["bytes"], out["version"] = rows["stage"], rows["bytes"], rows["version"]
        if rank in waited:
            out["waited"], out["for"] = waited[rank].ns[chosen] / 1e6, waited[rank].ranks[chosen]
        parts.append(out)
    return np.concatenate(parts)


def _longest(table: NDArray[np.void], most: int) -> NDArray[np.void]:
    """At most `most` rows, the longest, in their own order; the steps themselves are always among them."""
    if len(table) <= most:
        return table
    length = np.where(table["idle"], np.inf, table["end"] - table["start"])
    return table[np.sort(np.argsort(-length, kind="stable")[:most])]


def _trace(phase: str, rows: NDArray[np.void], words: Words, least: float) -> dict[str, Any]:
    """Bars of one phase; a digit of their numbers takes `least` of the axis."""
    kinds = [Kind(int(kind)) for kind in rows["kind"]]
    lanes = np.array([1 if kind in P2P else -1 if kind in HEAD else 0 for kind in kinds])
    marker: dict[str, Any] = {"color": theme.phase_fill(phase), "line": {"width": 0.5, "color": var("surface")}}
    if phase == "idle":
        marker["pattern"] = theme.hatch("/", "phase-idle-line", 6)
    return {
        "type": "bar",
        "orientation": "h",
        "name": phase,
        "base": np.round(rows["start"], 4).tolist(),
        "x": np.round(rows["end"] - rows["start"], 4).tolist(),
        "y": (rows["y"] + lanes * (FULL + STRIP) / 2).tolist(),
        "width": np.where(lanes != 0, STRIP, FULL).tolist(),
        "text": [_number(kind, row, least) for kind, row in zip(kinds, rows, strict=True)],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": var(_ON.get(phase, "ink")), "size": 11},
        "marker": marker,
        "customdata": [_hover(kind, row, words) for kind, row in zip(kinds, rows, strict=True)],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _number(kind: Kind, row: np.void, least: float) -> str:
    """The micro-batch, where it can be read: a text costs the browser as much as ten bars, even one that is hidden."""
    if kind not in COMPUTE or row["covered"] or row["micro_batch"] < 0:
        return ""
    number = str(row["micro_batch"])
    return number if row["end"] - row["start"] >= least * len(number) else ""


def _hover(kind: Kind, row: Any, words: Words) -> str:
    took = f"{significant(row['end'] - row['start'])} {words.unit}"
    if kind in HIDDEN:
        return f"{words.row} {row['rank']}: step of {took}"
    which = f" {row['micro_batch']}" if row["micro_batch"] >= 0 else ""
    said = [f"{words.row} {row['rank']}, stage {row['stage']}: {WORDS.get(kind, kind.name)}{which}"]
    said.append(f"{took} at {row['start']:.2f}")
    if row["version"]:
        said.append(f"weights of {row['version']} micro-batches")
    if row["bytes"]:
        said.append(bytes_text(int(row["bytes"])))
    if row["waited"] > 0:
        whom = f" for rank {row['for']}" if row["for"] >= 0 else ""
        said.append(f"waited {significant(row['waited'])} {words.unit}{whom}")
    return "<br>".join(said)


def _table(runs: Sequence[tuple[str, Spans]], window: tuple[float, float] | None) -> list[list[str]]:
    out = []
    for label, spans in runs:
        zero = origin(spans)
        for rank, whole in sorted(spans.items()):
            every = of_one(whole, len(spans))
            rows = every if window is None else every[inside(every, zero, window)]
            busy = dict.fromkeys(_PHASES, 0)
            for kind in np.unique(rows["kind"]):
                own = rows[rows["kind"] == kind]
                if Kind(int(kind)) not in HIDDEN:
                    busy[theme.phase_of(int(kind))] += int((own["end"] - own["start"]).sum())
            out.append([label, str(rank), *(significant(ns / 1e6) for ns in busy.values())])
    return out
