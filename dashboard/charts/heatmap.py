"""A step with too many spans for bars: rank x time in bins, each in the colour of the phase that fills most of it.

Zooming in asks for the window again (`meta.window` is the address): from about 2 000 spans in view down, bars.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.charts import theme
from dashboard.charts.chart import Chart
from dashboard.charts.gantt import ROW_PX, Spans
from dashboard.charts.theme import Figure
from parallel_core.analysis import waits
from parallel_core.analysis.quantities import count_text, percent_text
from parallel_core.analysis.sweep import NOBODY, Pieces, sweep
from parallel_core.schedule.ir import SENDS, Kind

BINS = 800
LAYERS: tuple[tuple[str, tuple[Kind, ...]], ...] = (
    ("communication", (Kind.TP_COLLECTIVE, Kind.ALLREDUCE, Kind.REDUCE_SCATTER, Kind.GATHER)),
    ("recompute", (Kind.R,)),
    ("weight", (Kind.W,)),
    ("backward", (Kind.B, Kind.BW)),
    ("forward", (Kind.F,)),
    ("optimizer", (Kind.OPT_STEP,)),
    ("communication", tuple(sorted(SENDS))),
    ("other", (Kind.DATA, Kind.SETUP)),
)
"""First claim first. What only waits (a receive, the norm) is idle, as it is among bars."""
PHASES = ("idle", "forward", "backward", "weight", "recompute", "communication", "optimizer", "other")
COLUMNS = ("rank", *(f"{phase}, % of the window" for phase in PHASES))
LEAST_ROW_PX = 12


def chart(spans: Spans, title: str, source: str, window: tuple[float, float] | None = None) -> Chart:
    """`window` in ms from the start of the step; None = all of it."""
    made, shares = _figure(spans, window)
    total = sum(map(len, spans.values()))
    subtitle = (
        "One traced step, ms from its start; a row a rank, each bin in the colour of what fills most of it; "
        "zoom in to see the operations"
    )
    rows = [[str(rank), *(percent_text(share) for share in own)] for rank, own in shares.items()]
    source = f"{source}; {count_text(total)} spans in {made['layout']['meta']['bins']} bins a rank"
    return Chart("gantt", title, subtitle, source, made, COLUMNS, rows)


def _figure(spans: Spans, window: tuple[float, float] | None) -> tuple[Figure, dict[int, list[float]]]:
    zero = waits.origin(spans)
    end = max(int(rows["end"].max()) for rows in spans.values() if len(rows))
    begin, until = (zero, end) if window is None else (zero + round(window[0] * 1e6), zero + round(window[1] * 1e6))
    begin, until = max(zero, begin), max(min(end, until), max(zero, begin) + 1)
    edges = np.linspace(begin, until, min(BINS, until - begin) + 1)
    filled = {rank: fill(rows, edges) for rank, rows in sorted(spans.items())}
    ranks = list(filled)
    z = np.array([own.argmax(axis=0) for own in filled.values()])
    shares = {rank: (own.mean(axis=1)).tolist() for rank, own in filled.items()}
    full = (end - zero) / 1e6 * 1.005
    layout = theme.layout(
        max(LEAST_ROW_PX * len(ranks), min(ROW_PX * len(ranks), 400)) + 56,
        xaxis=theme.axis("ms from the start of the step", range=[0, full], zeroline=False),
        yaxis=theme.rows_axis([f"rank {rank}" for rank in ranks]),
        meta={"bins": len(edges) - 1},
    )
    return {"data": [_trace(z, edges, zero, ranks)], "layout": layout}, shares


def fill(rows: NDArray[np.void], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """(phase of PHASES, bin): the part of the bin that it takes; the column of a bin adds up to 1."""
    bounds = int(edges[0]), int(np.ceil(edges[-1]))
    found = sweep([_of(rows, kinds) for _, kinds in LAYERS], bounds)
    width = np.diff(edges)
    stops = np.concatenate([found.starts, [bounds[1]]])
    out = np.zeros((len(PHASES), len(width)))
    for i, (phase, _) in enumerate((*LAYERS, ("idle", ()))):
        mine = np.where(found.owner == (i if i < len(LAYERS) else NOBODY), found.lengths, 0)
        reached = np.interp(edges, stops, np.concatenate([[0], np.cumsum(mine)]))
        out[PHASES.index(phase)] += np.diff(reached) / width
    return out


def _of(rows: NDArray[np.void], kinds: tuple[Kind, ...]) -> Pieces:
    own = waits.of_kinds(rows, *kinds)
    return own["start"], own["end"]


def _trace(z: NDArray[np.int64], edges: NDArray[np.float64], zero: int, ranks: list[int]) -> dict[str, Any]:
    n = len(PHASES)
    steps = [(i / n, (i + 1) / n, theme.phase_fill(phase)) for i, phase in enumerate(PHASES)]
    middle = ((edges[:-1] + edges[1:]) / 2 - zero) / 1e6
    return {
        "type": "heatmap",
        "x": np.round(middle, 5).tolist(),
        "y": list(range(len(ranks))),
        "z": z.tolist(),
        "zmin": -0.5,
        "zmax": n - 0.5,
        "colorscale": [[at, colour] for low, high, colour in steps for at in (low, high)],
        "showscale": False,
        "ygap": 2,
        "customdata": [[PHASES[value] for value in row] for row in z.tolist()],
        "hovertemplate": "%{y}: mostly %{customdata} at %{x:.2f} ms<extra></extra>",
    }
