"""Finds when the steps of a trace begin and end: as marked by the profiler, or by their optimizer updates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from parallel_core.schedule.ir import Kind
from parallel_core.traces import names
from parallel_core.traces.collect import Collected
from parallel_core.traces.nesting import outermost

Windows = Mapping[int, tuple[int, int]]
"""Step -> (start, end) on the host, ns."""

EVER = (-(1 << 62), 1 << 62)


class Moments:
    """Times that are sorted once, so that many windows can be selected efficiently."""

    def __init__(self, moments: NDArray[np.int64]) -> None:
        self._order = np.argsort(moments, kind="stable")
        self._sorted = moments[self._order]

    def before(self, moment: int) -> int:
        """Returns how many are earlier than `moment`."""
        return int(np.searchsorted(self._sorted, moment))

    def between(self, start: int, end: int) -> NDArray[np.int64]:
        """Returns the ascending indices of those from `start` to before `end`."""
        return np.sort(self._order[self.before(start) : self.before(end)])

    def reached(self, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns [n] = the latest of the `ends` of the n earliest moments; [0] is earlier than any time."""
        return np.maximum.accumulate(np.concatenate([[EVER[0]], ends[self._order]]))


def windows(trace: Collected) -> Windows:
    """Returns the marked steps, otherwise those found by updates; {} where there are fewer than two of those."""
    return marked(trace) or _by_updates(trace)


def marked(trace: Collected) -> Windows:
    """Returns the window of each step's annotation; of several annotations of a step, the longest."""
    numbers = {i: int(found[1]) for i, name in enumerate(trace.names) if (found := names.STEP.match(name))}
    out: dict[int, tuple[int, int]] = {}
    for event in trace.host[np.isin(trace.host["name"], list(numbers))]:
        number, start, end = numbers[int(event["name"])], int(event["start"]), int(event["end"])
        if number not in out or end - start > out[number][1] - out[number][0]:
            out[number] = start, end
    return dict(sorted(out.items()))


def _by_updates(trace: Collected) -> Windows:
    """Returns steps that end with an update; several updates without a backward between them count as one. The first
    step begins with the trace."""
    means = [names.marker(name) for name in trace.names]
    updates = trace.host[np.isin(trace.host["name"], [i for i, one in enumerate(means) if one and _updates(one)])]
    updates = updates[outermost(updates["start"], updates["end"])]
    backward = [i for i, one in enumerate(means) if one and one.kind in (Kind.BW, Kind.B, Kind.W)]
    begun = trace.host["start"][np.isin(trace.host["name"], backward)]  # sorted, as the host's events are
    parted = np.diff(np.searchsorted(begun, updates["start"])) > 0
    ends = updates["end"][np.concatenate([parted, [True]])].tolist() if len(updates) else []
    if len(ends) < 2:
        return {}
    first = min(int(group["start"].min()) for group in (trace.host, trace.device) if len(group))
    return dict(enumerate(zip([first, *ends[:-1]], ends, strict=True)))


def _updates(meaning: names.Meaning) -> bool:
    return meaning.kind is Kind.OPT_STEP
