"""Inter-host messages and collectives: those on the same link at the same time share it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

Line = tuple[str, str]
"""(from host, to host): each direction is a link of its own."""
_DONE_NS = 1e-3


class Flow(NamedTuple):
    """A message or a collective on the network.

    - `lines`: its number of streams on each link
    - `transfer`: ns that any one of them takes alone; all has arrived `latency` ns later
    - `known`: (streams, slowdown against one alone), as measured
    - `group`: equal for the flows of ranks in the same collective, which is on its links only once
    """

    lines: Mapping[Line, int]
    transfer: float
    latency: float
    known: tuple[tuple[int, float], ...] = ()
    group: object = None

    def slower(self, streams: int) -> float:
        """Slowdown of the transfer with so many streams on the link. If only single streams were timed, streams share
        the bandwidth of one; beyond the most streams timed, the link is saturated."""
        counts, factors = zip((1, 1.0), *self.known, strict=True)
        if streams > counts[-1]:
            return float(factors[-1] * streams / counts[-1])
        return float(np.interp(streams, counts, factors))


class ActiveFlows:
    """Flows in progress, with the ns that each would still take alone."""

    def __init__(self) -> None:
        self._left: dict[object, tuple[Flow, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._left)

    def put(self, what: object, flow: Flow) -> None:
        """Starts a flow under the key `what`."""
        self._left[what] = flow, flow.transfer

    def soonest(self) -> float:
        """Ns until the first flow is done, if none is added before."""
        return min((left * slower for _, left, slower in self._rows()), default=math.inf)

    def advance(self, ns: float) -> list[tuple[object, float]]:
        """Advances time by `ns`; returns (flow key, latency) of those that are done."""
        through = []
        for what, left, slower in self._rows():
            flow, rest = self._left[what][0], left - ns / slower
            self._left[what] = flow, rest
            if rest <= _DONE_NS:
                through.append((what, flow.latency))
        for what, _ in through:
            del self._left[what]
        return through

    def _rows(self) -> list[tuple[object, float, float]]:
        """(key, ns left alone, current slowdown on its fullest link) of each flow."""
        streams: Counter[Line] = Counter()
        for one in {what if one.group is None else one.group: one for what, (one, _) in self._left.items()}.values():
            streams.update(one.lines)
        return [
            (what, left, one.slower(max(streams[line] for line in one.lines)))
            for what, (one, left) in self._left.items()
        ]
