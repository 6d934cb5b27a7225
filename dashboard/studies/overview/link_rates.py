"""Lower bounds for the speed of a study's links, from the messages and collectives of its traced steps.

A message counts from the start of its send to its arrival, a collective from the arrival of its last rank to its end:
no data can move before, so no rate is higher than the link's. Latency, and other work of the processor in that time,
are included: with small messages the link looks slower than it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis import waits
from parallel_core.layout import Layout
from parallel_core.schedule.ir import RECVS, REPLICA_COLLECTIVES, Kind

Spans = Mapping[int, NDArray[np.void]]
AMONG = {"stages": tuple(RECVS), "replicas": tuple(REPLICA_COLLECTIVES), "tensor ranks": (Kind.TP_COLLECTIVE,)}


class Rate(NamedTuple):
    """Bytes a second of the fastest of `messages`, its size in bytes, and the index of the step it is from."""

    per_s: float
    size: int
    messages: int
    step: int = 0


def rates(steps: Iterable[tuple[Spans, Layout]]) -> dict[str, Rate]:
    """For each key of AMONG between which anything was sent: the fastest message of all `steps`."""
    taken: dict[str, list[NDArray[np.float64]]] = {}
    for i, (spans, layout) in enumerate(steps):
        for among, found in _moved(spans, layout):
            taken.setdefault(among, []).append(np.vstack([found, np.full(found.shape[1], i)]))
    out = {}
    for among in AMONG:
        size, ns, of = np.concatenate([np.empty((3, 0)), *taken.get(among, [])], axis=1)
        if len(size):
            best = int((size / ns).argmax())
            out[among] = Rate(float(size[best] / ns[best] * 1e9), int(size[best]), len(size), int(of[best]))
    return out


def _moved(spans: Spans, layout: Layout) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yields (key of AMONG, array with a row of bytes and a row of nanoseconds) of what had bytes and a known
    beginning."""
    rows = waits.ordered(spans)
    sends, came = waits.sends(rows, layout), waits.arrivals(rows, layout)
    for rank, own in rows.items():
        yield "stages", _taken(waits.of_kinds(own, *RECVS), waits.received(rank, own, layout, sends))
        for among in ("replicas", "tensor ranks"):
            for kind in AMONG[among]:
                if (rank, kind) in came:
                    yield among, _taken(waits.of_kinds(own, kind), came[rank, kind])


def _taken(own: NDArray[np.void], causes: waits.Causes) -> NDArray[np.float64]:
    ns = own["end"] - causes.at
    known = (causes.ranks >= 0) & (ns > 0) & (own["bytes"] > 0)
    return np.array([own["bytes"][known], ns[known]], np.float64)
