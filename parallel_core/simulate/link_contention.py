"""Messages and collectives on their way between hosts: those on one line at the same time share it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

Line = tuple[str, str]
"""(from host, to host): each direction has its own."""
_DONE_NS = 1e-3


class Passage(NamedTuple):
    """Of a message, or of a collective: `lines` says how many streams it has on each, of which any one takes `transfer`
    ns alone; all is there `latency` ns later. `known` are (streams, how many times longer than alone) that were
    measured. Ranks that are in one collective each have its passage, with the same `group`: it is on its lines once."""

    lines: Mapping[Line, int]
    transfer: float
    latency: float
    known: tuple[tuple[int, float], ...] = ()
    group: object = None

    def slower(self, streams: int) -> float:
        """How many times longer the transfer takes while so many streams are on the line. Where no more than one was
        ever timed they share what one has; beyond the most that were, the line is full."""
        counts, factors = zip((1, 1.0), *self.known, strict=True)
        if streams > counts[-1]:
            return float(factors[-1] * streams / counts[-1])
        return float(np.interp(streams, counts, factors))


class Wires:
    """What is on its way, by what it is, and the ns that it would still take alone."""

    def __init__(self) -> None:
        self._left: dict[object, tuple[Passage, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._left)

    def put(self, what: object, passage: Passage) -> None:
        self._left[what] = passage, passage.transfer

    def soonest(self) -> float:
        """Ns until the first is through, if no other is put on before."""
        return min((left * slower for _, left, slower in self._rows()), default=math.inf)

    def flow(self, ns: float) -> list[tuple[object, float]]:
        """Lets so many ns pass; (what is through, its latency)."""
        through = []
        for what, left, slower in self._rows():
            passage, rest = self._left[what][0], left - ns / slower
            self._left[what] = passage, rest
            if rest <= _DONE_NS:
                through.append((what, passage.latency))
        for what, _ in through:
            del self._left[what]
        return through

    def _rows(self) -> list[tuple[object, float, float]]:
        """(what, ns left alone, how many times slower it goes now, on the fullest of its lines) of each."""
        streams: Counter[Line] = Counter()
        for one in {what if one.group is None else one.group: one for what, (one, _) in self._left.items()}.values():
            streams.update(one.lines)
        return [
            (what, left, one.slower(max(streams[line] for line in one.lines)))
            for what, (one, left) in self._left.items()
        ]
