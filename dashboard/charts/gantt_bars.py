"""The bars of traced steps as one table: what each span is, and where it is on the common axis."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from dashboard.charts.labels import room
from dashboard.charts.updates import of_one
from parallel_core.analysis.waits import Waited, among, step_start
from parallel_core.schedule.ir import COMPUTE, INSIDE, Kind

Spans = Mapping[int, NDArray[np.void]]
"""global rank -> SPAN rows of one step."""

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
        ("until", "f8"),  # when the wait ended, ms from the start of the step
        ("known", "?"),  # whether waits on its rank are distinguished from communication
        ("for", "i4"),  # the rank it waited for
        ("idle", "?"),
        ("room", "f8", (2,)),  # where its number has room, ms; nan = nowhere
        ("predicted", "?"),
    ]
)


def in_seconds(spans: Spans) -> Spans:
    """The spans of a long step with times in µs in place of ns, so that a chart of ms is one of seconds."""
    out = {}
    for rank, rows in spans.items():
        out[rank] = rows.copy()
        for end in ("start", "end"):
            out[rank][end] //= 1000
    return out


def inside(rows: NDArray[np.void], zero: int, window: tuple[float, float]) -> NDArray[np.bool_]:
    """Mask of the rows that overlap the window, in ms from `zero` (ns)."""
    low, high = (zero + side * 1e6 for side in window)
    return np.logical_and(rows["end"] >= low, rows["start"] <= high)


def length(spans: Spans) -> int:
    """Nanoseconds from the start of the step to the end of its last span."""
    return max((int(rows["end"].max()) for rows in spans.values() if len(rows)), default=0) - step_start(spans)


def bars(
    spans: Spans, place: Mapping[int, float], waited: Mapping[int, Waited], window: tuple[float, float] | None
) -> NDArray[np.void]:
    """Returns BAR rows of one run, each rank at its y in `place`; only those in `window` (ms) where that is given."""
    parts, zero = [np.empty(0, BAR)], step_start(spans)
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
            out["known"] = True
            out["until"] = (waited[rank].until[chosen] - zero) / 1e6
        parts.append(out)
    return np.concatenate(parts)


def longest(table: NDArray[np.void], most: int) -> NDArray[np.void]:
    """Returns the `most` longest rows in their own order; the steps themselves are always among them."""
    if len(table) <= most:
        return table
    length = np.where(table["idle"], np.inf, table["end"] - table["start"])
    return table[np.sort(np.argsort(-length, kind="stable")[:most])]


def number_room(kept: NDArray[np.void], waits: NDArray[np.void], least: float) -> NDArray[np.float64]:
    """Where the bars have room for their numbers: recomputation lies on other computation, collectives within them and
    their waits on both."""
    upper, nested = kept["kind"] == Kind.R, among(kept, INSIDE)
    within = np.concatenate([kept[nested], waits[among(waits, INSIDE)]])
    out = np.column_stack([kept["start"], kept["end"]])
    computes = among(kept, COMPUTE)
    lower = computes & ~upper
    out[lower] = room(kept[lower], np.concatenate([kept[upper], within]), least)
    out[upper] = room(kept[upper], within, least)
    out[upper & (kept["end"] - kept["start"] < least)] = np.nan
    return out
