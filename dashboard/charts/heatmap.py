"""A step with too many spans for bars: rank x time in bins, each in the colour of the phase that fills most of it.

Zooming in requests the window again (`meta.window` is the address); from about 2 000 spans in view down, the response
has bars.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.charts import theme
from dashboard.charts.chart import Chart
from dashboard.charts.gantt import ROW_PX
from dashboard.charts.gantt_bars import Spans
from dashboard.charts.theme import Figure
from dashboard.charts.updates import of_one
from parallel_core.analysis import waits
from parallel_core.analysis.bins import Bins, bins
from parallel_core.analysis.breakdown import phase_layers
from parallel_core.analysis.quantities import count_text, percent_text
from parallel_core.analysis.waits import Waited

BINS = 800
FINEST = 16_384
"""Bins kept for each rank of a long step; windows down to a twentieth of the step are drawn from them."""
PHASES = ("idle", "forward", "backward", "weight", "recompute", "communication", "optimizer", "other")
"""Phases of `analysis.breakdown.phases`; time that a rank waits for another is idle here, as it is among bars."""
COLUMNS = ("rank", *(f"{phase}, % of the window" for phase in PHASES))
LEAST_ROW_PX = 12

Window = tuple[float, float]
"""(from, to) in ms from the start of the step."""
Shares = NDArray[np.float64]
"""Array (phase of PHASES, bin): the part of the bin that the phase takes; each bin's column adds up to 1."""


def chart(
    spans: Spans,
    title: str,
    source: str,
    window: Window | None = None,
    kept: Mapping[int, Bins] | None = None,
    waited: Mapping[int, Waited] | None = None,
) -> Chart:
    """The heatmap of `window`, or of the whole step if None.

    `kept` = what `finest` returned for these spans, which makes wide windows quick. `waited` = who waited for whom in
    them, as far as that is known.
    """
    made, shares = _figure(spans, window, kept or {}, waited or {})
    total = sum(map(len, spans.values()))
    subtitle = (
        "One traced step, ms from its start; a row for each rank, each bin in the colour of what fills most of it; "
        "zoom in to see the operations"
    )
    rows = [[str(rank), *(percent_text(share) for share in own)] for rank, own in shares.items()]
    source = f"{source}; {count_text(total)} spans in {made['layout']['meta']['bins']} bins a rank"
    return Chart("gantt", title, subtitle, source, made, COLUMNS, rows)


def finest(spans: Spans, waited: Mapping[int, Waited] | None = None) -> dict[int, Bins]:
    """Returns the whole step in FINEST bins, by rank; their layers are PHASES."""
    edges = np.linspace(*_bounds(spans), FINEST + 1)
    return {rank: _bins(of_one(rows, len(spans)), edges, (waited or {}).get(rank)) for rank, rows in spans.items()}


def _bounds(spans: Spans) -> tuple[int, int]:
    return waits.step_start(spans), max(int(rows["end"].max()) for rows in spans.values() if len(rows))


def _figure(
    spans: Spans, window: Window | None, kept: Mapping[int, Bins], waited: Mapping[int, Waited]
) -> tuple[Figure, dict[int, list[float]]]:
    zero, end = _bounds(spans)
    begin, until = (zero, end) if window is None else (zero + round(window[0] * 1e6), zero + round(window[1] * 1e6))
    begin, until = max(zero, begin), max(min(end, until), max(zero, begin) + 1)
    edges, filled = _filled(spans, begin, until, kept, waited)
    ranks = list(filled)
    z = np.array([own.argmax(axis=0) for own in filled.values()])
    shares = {rank: (own.mean(axis=1)).tolist() for rank, own in filled.items()}
    full = (end - zero) / 1e6 * 1.005
    layout = theme.layout(
        max(LEAST_ROW_PX * len(ranks), min(ROW_PX * len(ranks), 400)) + 56,
        xaxis=theme.axis("ms from the start of the step", range=[0, full], zeroline=False),
        yaxis=theme.rows_axis([f"rank {rank}" for rank in ranks]),
        meta={"zooms": True, "bins": len(edges) - 1},
    )
    return {"data": [_trace(z, edges, zero, ranks)], "layout": layout}, shares


def _filled(
    spans: Spans, begin: int, until: int, kept: Mapping[int, Bins], waited: Mapping[int, Waited]
) -> tuple[NDArray[np.float64], dict[int, Shares]]:
    """Returns the edges (ns) of the bins between two instants, and the shares in them by rank."""
    found = {rank: own.between(begin, until, BINS) for rank, own in sorted(kept.items())}
    wide = {rank: own for rank, own in found.items() if own is not None}
    if wide and len(wide) == len(spans):
        return next(iter(wide.values()))[0], {rank: own for rank, (_, own) in wide.items()}
    edges = np.linspace(begin, until, min(BINS, until - begin) + 1)
    out = {}
    for rank, rows in sorted(spans.items()):
        here = (rows["end"] >= begin) & (rows["start"] <= until)
        own = Waited(*(column[here] for column in waited[rank])) if rank in waited else None
        out[rank] = fill(of_one(rows, len(spans))[here], edges, own)
    return edges, out


def fill(rows: NDArray[np.void], edges: NDArray[np.float64], waited: Waited | None = None) -> Shares:
    """Returns the shares of the phases in the bins between `edges` (ns)."""
    return np.diff(_bins(rows, edges, waited).reached) / np.diff(edges)


def _bins(rows: NDArray[np.void], edges: NDArray[np.float64], waited: Waited | None) -> Bins:
    """Bins of one rank with a layer for each of PHASES, which own every instant between the edges."""
    names, pieces = zip(*phase_layers(rows, waited), strict=True)
    reached = np.zeros((len(PHASES), len(edges)))
    for name, own in zip((*names, "idle"), bins(pieces, edges).reached, strict=True):
        reached[PHASES.index("idle" if name == "waiting" else name)] += own
    return Bins(edges, reached)


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
        "zsmooth": False,
        "colorscale": [[at, colour] for low, high, colour in steps for at in (low, high)],
        "showscale": False,
        "ygap": 2,
        # The browser writes the names into the cells (chart_cells.js): here they would be most of the document.
        "meta": {"names": PHASES},
        "hovertemplate": "%{y}: mostly %{customdata} at %{x:.2f} ms<extra></extra>",
    }
