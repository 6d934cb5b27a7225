"""SPAN rows of a device's trace that are no kernels: copies beside kernels, and the host's waits for data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from parallel_core.observe.recorder import LANE_HOST
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import COMPUTE, Kind
from parallel_core.traces import names
from parallel_core.traces.collect import Collected
from parallel_core.traces.nesting import outermost_of

_ACROSS = ("HtoD", "DtoH", "HostToDevice", "DeviceToHost")
"""Parts of the names of copies between host and device: CUPTI's, and ROCm's."""
Pauses = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Starts and ends, ns, ascending, of the time in which nothing runs."""


def reads(trace: Collected) -> NDArray[np.void]:
    """Returns a DATA row on the host's lane for each outermost read of a batch (`enumerate(DataLoader)`), by start."""
    known = [names.marker(name) for name in trace.names]
    data = np.array([bool(meaning and meaning.kind is Kind.DATA) for meaning in known], np.bool_)
    found = trace.host[outermost_of(trace.host, data[trace.host["name"]])]
    rows = np.zeros(len(found), SPAN)
    rows["kind"], rows["lane"], rows["stage"], rows["micro_batch"] = Kind.DATA, LANE_HOST, -1, -1
    rows["start"], rows["end"] = found["start"], found["end"]
    return rows


def after(rows: NDArray[np.void], begun: int) -> NDArray[np.void]:
    """Returns the parts of the rows after `begun`, when the device began their step: what the host did before it, while
    the previous step still ran, held up nothing."""
    out = rows[rows["end"] > begun].copy()
    out["start"] = np.maximum(out["start"], begun)
    return out


def beside_kernels(
    trace: Collected, rows: NDArray[np.void], moments: NDArray[np.int64]
) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """Returns the rows of `trace.device` and their launch moments, with copies as SETUP and only where no kernel runs.

    That is for copies between host and device, and for all on a stream without kernels, unless they are
    communication, an update or a read of data: they compute nothing, and must not hide collectives.
    """
    work = trace.device
    copies = trace.copies[work["name"]]
    across = np.array([any(word in name for word in _ACROSS) for name in trace.names], np.bool_)
    apart = ~np.isin(work["thread"], work["thread"][~copies]) | across[work["name"]]
    chosen = copies & apart & np.isin(rows["kind"], [int(kind) for kind in COMPUTE])
    if not chosen.any():
        return rows, moments
    parts, of = _within(rows[chosen], pauses(work[~copies]))
    parts["kind"], parts["lane"] = Kind.SETUP, LANE_HOST
    return np.concatenate([rows[~chosen], parts]), np.concatenate([moments[~chosen], moments[chosen][of]])


def alone(rows: NDArray[np.void], free: Pauses, least: int) -> NDArray[np.void]:
    """Returns the parts of the rows in the `free` time: what the host does while its device runs holds nothing up, nor
    in pauses of at most `least` ns, over which the device's operations are joined."""
    long = free[1] - free[0] > least
    return _within(rows, (free[0][long], free[1][long]))[0]


def _within(rows: NDArray[np.void], free: Pauses) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """Returns the parts of the rows in the `free` time, and the index of the row that each is a part of."""
    free_from, free_to = free
    low = np.searchsorted(free_to, rows["start"], "right")
    high = np.searchsorted(free_from, rows["end"], "left")
    many = np.maximum(high - low, 0)
    of, at = np.repeat(np.arange(len(rows)), many), np.repeat(low, many)
    at += np.arange(len(at)) - np.repeat(np.cumsum(many) - many, many)
    parts = rows[of]
    parts["start"], parts["end"] = np.maximum(parts["start"], free_from[at]), np.minimum(parts["end"], free_to[at])
    return parts, of


def pauses(work: NDArray[np.void]) -> Pauses:
    """Returns the time in which none of `work` (in any order) runs, before and after it included."""
    order = np.argsort(work["start"], kind="stable")
    ends = np.concatenate([[-(1 << 62)], np.maximum.accumulate(work["end"][order])])
    starts = np.concatenate([work["start"][order], [1 << 62]])
    free = starts > ends
    return ends[free], starts[free]
