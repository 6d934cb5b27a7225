"""When the steps of a trace began and ended: marked by the profiler, or told by their updates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from parallel_core.schedule.ir import Kind
from parallel_core.traces import names
from parallel_core.traces.collect import Collected
from parallel_core.traces.nesting import outermost

Windows = Mapping[int, tuple[int, int]]
"""Step -> (start, end) on the host, ns."""


def windows(trace: Collected) -> Windows:
    """The marked steps, else those told by updates; {} where there are fewer than two of those."""
    return marked(trace) or _by_updates(trace)


def marked(trace: Collected) -> Windows:
    """Of each step's annotation; where it stands several times, of the longest."""
    out: dict[int, tuple[int, int]] = {}
    for i, name in enumerate(trace.names):
        if found := names.STEP.match(name):
            events = trace.host[trace.host["name"] == i]
            if len(events):
                best = events[np.argmax(events["end"] - events["start"])]
                out[int(found[1])] = (int(best["start"]), int(best["end"]))
    return dict(sorted(out.items()))


def _by_updates(trace: Collected) -> Windows:
    """A step ends with an update; several with no backward between them are one. The first begins with the trace."""
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
