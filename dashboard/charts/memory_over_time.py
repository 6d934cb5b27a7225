"""Memory over one metered step: a stack of categories for each rank, and under it the micro-batches in flight.

Micro-batches in flight are counted in a traced step of the same run (forward begun, backward not ended) and placed on
the metered step's axis in % of the step: metering slows a step but does not change the order of its operations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dashboard.charts import theme
from dashboard.charts.chart import Chart
from dashboard.charts.theme import var
from parallel_core.analysis import waits
from parallel_core.analysis.names import CATEGORY_NAMES
from parallel_core.analysis.quantities import bytes_text, significant
from parallel_core.observe.records import CATEGORIES
from parallel_core.schedule.ir import Kind

MIB = 1 << 20
STACK_PX, FLIGHT_PX, GAP_PX = 130, 44, 22
DRAWN = 8
COLUMNS = ("rank", "measured peak", "predicted peak", "at % of the step", "largest at the peak", "most in flight")


class Metered(NamedTuple):
    """One rank: its `curve` (MEMORY rows), `peak` in bytes by category, `predicted` peak in bytes, and `spans` of a
    traced step (SPAN rows, may be empty)."""

    rank: int
    curve: NDArray[np.void]
    peak: Mapping[str, int]
    predicted: int | None
    spans: NDArray[np.void]


def chart(ranks: list[Metered], source: str) -> Chart:
    """Draws at most DRAWN ranks, those with the highest peaks."""
    chosen = sorted(sorted(ranks, key=lambda one: -sum(one.peak.values()))[:DRAWN], key=lambda one: one.rank)
    each = STACK_PX + FLIGHT_PX + 2 * GAP_PX
    layout = theme.layout(each * len(chosen) + 48, hovermode="closest")
    inner = layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]
    layout["xaxis"] = theme.axis("% of the metered step", range=[0, 100], zeroline=False)
    data: list[dict[str, Any]] = []
    for i, one in enumerate(chosen):
        top = 1 - i * each / inner
        stack, flight = f"y{2 * i + 1}" if i else "y", f"y{2 * i + 2}"
        low = top - STACK_PX / inner
        name = f"rank {one.rank}, MiB"
        layout[_axis(stack)] = theme.axis(name, domain=[low, top], rangemode="tozero", fixedrange=True, nticks=4)
        under = [max(0.0, low - (GAP_PX + FLIGHT_PX) / inner), low - GAP_PX / inner]
        counted = _flight(one, flight)
        whole = max(1, math.ceil(max(counted["y"], default=0) / 2))
        layout[_axis(flight)] = theme.axis("in flight", domain=under, rangemode="tozero", fixedrange=True, dtick=whole)
        data += [*_stack(one, stack), *_peaks(one, stack), counted]
    layout["xaxis"]["anchor"] = f"y{2 * len(chosen)}" if chosen else "y"
    part = f"; {len(chosen)} of {len(ranks)} ranks" if len(chosen) < len(ranks) else ""
    subtitle = "Live memory by category; dotted = predicted peak; below, micro-batches between forward and backward"
    figure = {"data": data, "layout": layout}
    return Chart("memory-over-time", _title(ranks), subtitle, source + part, figure, COLUMNS, [_row(r) for r in ranks])


def in_flight(spans: NDArray[np.void]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns a staircase (% of the step, count): the micro-batches between their forward and the end of their last
    backward.

    A rank that holds several stages counts each of them as an equal part of the micro-batch, as `SchedulePreview` does.
    A pipeline that never flushes begins with those in flight whose forward was in the step before, and ends with those
    whose backward is in the next one.
    """
    own = spans[spans["micro_batch"] >= 0]
    forward, backward = waits.of_kinds(own, Kind.F), waits.of_kinds(own, Kind.BW, Kind.B, Kind.W)
    if not len(backward):
        return np.empty(0), np.empty(0)
    first, last = int(spans["start"].min()), int(spans["end"].max())
    both = np.concatenate([forward, backward])
    keys, place = np.unique((both["stage"].astype(np.int64) << 32) + both["micro_batch"], return_inverse=True)
    begun, ended = np.full(len(keys), last + 1), np.full(len(keys), first - 1)
    np.minimum.at(begun, place[: len(forward)], forward["start"])
    np.maximum.at(ended, place[len(forward) :], backward["end"])
    before = int((begun > last).sum())
    begun, ended = begun[begun <= last], ended[ended >= first]
    at, change = np.concatenate([begun, ended]), np.repeat([1, -1], (len(begun), len(ended)))
    order = np.lexsort((change, at))  # at the same instant, an end counts before a begin
    count = before + np.concatenate([[0], np.cumsum(change[order])])
    x = np.concatenate([[0.0], 100 * (at[order] - first) / max(1, last - first), [100.0]])
    return x, np.append(count, count[-1]) / len(np.unique(both["stage"]))


def _axis(name: str) -> str:
    return name.replace("y", "yaxis", 1)


def _percent(curve: NDArray[np.void]) -> NDArray[np.float64]:
    t = curve["t"] - curve["t"][0]
    return 100 * t / max(1, int(t[-1]))


def _stack(one: Metered, axis: str) -> list[dict[str, Any]]:
    x = np.round(_percent(one.curve), 3).tolist()
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": CATEGORY_NAMES[category],
            "stackgroup": f"rank {one.rank}",
            "yaxis": axis,
            "x": x,
            "y": np.round(one.curve[category] / MIB, 3).tolist(),
            "line": {"width": 0, "shape": "hv"},
            "fillcolor": var(f"memory-{category}"),
            "hovertemplate": f"rank {one.rank}, {CATEGORY_NAMES[category]}: %{{y:.1f}} MiB<extra></extra>",
        }
        for category in CATEGORIES
    ]


def _peaks(one: Metered, axis: str) -> list[dict[str, Any]]:
    """The predicted peak as a dotted line; [] where nothing was predicted."""
    if not one.predicted:
        return []
    line = {"color": var("ink"), "width": 1.5, "dash": "dot"}
    hover = f"predicted peak {bytes_text(one.predicted)}<extra></extra>"
    y = one.predicted / MIB
    return [
        {"type": "scatter", "mode": "lines", "x": [0, 100], "y": [y, y], "yaxis": axis, "line": line}
        | {"hovertemplate": hover}
    ]


def _flight(one: Metered, axis: str) -> dict[str, Any]:
    x, count = in_flight(one.spans)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "in flight",
        "yaxis": axis,
        "x": np.round(x, 3).tolist(),
        "y": np.round(count, 3).tolist(),
        "line": {"color": var("phase-forward"), "width": 1.5, "shape": "hv"},
        "fill": "tozeroy",
        "hovertemplate": f"rank {one.rank}: %{{y}} in flight<extra></extra>",
    }


def _title(ranks: list[Metered]) -> str:
    worst = max(ranks, key=lambda one: sum(one.peak.values()))
    peak = sum(worst.peak.values())
    largest = max(worst.peak, key=lambda name: worst.peak[name])
    against = f", predicted {bytes_text(worst.predicted)}" if worst.predicted else ""
    return f"{bytes_text(peak)} at most, on rank {worst.rank}{against}; the largest part is {CATEGORY_NAMES[largest]}."


def _row(one: Metered) -> list[str]:
    total = np.sum([one.curve[category] for category in CATEGORIES], axis=0)
    largest = max(one.peak, key=lambda name: one.peak[name])
    _, count = in_flight(one.spans)
    return [
        str(one.rank),
        bytes_text(sum(one.peak.values()), zeros=True),
        bytes_text(one.predicted, zeros=True) if one.predicted else "",
        f"{_percent(one.curve)[int(total.argmax())]:.0f}",
        f"{CATEGORY_NAMES[largest]}, {bytes_text(one.peak[largest])}",
        significant(count.max()) if len(count) else "",
    ]
