"""Does the reference work between the timed steps of a run, to measure how fast its devices were at that time.

All devices do it at once; every ALONE_EVERY times one of them then does it alone. A host's speed does not drift within
a few milliseconds, so the additional time together is what the devices take from each other (two of them may be
threads of one core, or share the memory bus). All other differences between runs are changes of the host's speed.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from parallel_core.engine.device import Device
from parallel_core.engine.exchange import Exchange
from parallel_core.observe.reference import Reference
from parallel_core.spec import RunSpec

BUDGET = 0.04
"""Share of the steps' time that the work may take; after short steps it is done only every few steps."""
ALONE_EVERY = 2
"""How often all ranks do the work for each time that one of them does it alone."""


class ProbeReading(NamedTuple):
    """Processor seconds of the work on this rank, `together` with all ranks and `alone` (None if it was not its turn),
    and `lasted`, the wall seconds by which both delayed the next step."""

    together: float
    alone: float | None
    lasted: float


class ReferenceProbe:
    """The reference work of one rank. Every rank of the world calls `after_step` after each timed step.

    All ranks do the work at once, so that the devices are as busy as in a step; at times one does it alone; then all
    continue together. It is not done on CUDA, nor in a pipeline that does not flush, which is never between two steps.
    """

    def __init__(self, spec: RunSpec, device: Device, exchange: Exchange, rank: int = 0) -> None:
        self._on = spec.trace.reference and device.kind == "cpu" and spec.parallel.flushes
        self._exchange, self._rank, self._world = exchange, rank, spec.parallel.world
        self._reference: Reference | None = None
        self._count, self._due, self._times = 0, 1, 0
        self._steps = self._spent = 0.0

    def after_step(self, seconds: float) -> ProbeReading | None:
        """Does the work after a step of `seconds` if it is due; returns what it took, else None."""
        self._count += 1
        self._steps += seconds
        if not self._on or self._count < self._due:
            return None
        began = time.perf_counter()
        together, alone = self._work(), self._in_turn()
        self._agree(self._spent + time.perf_counter() - began)
        lasted = time.perf_counter() - began
        self._spent += lasted
        return ProbeReading(together, alone, lasted)

    def _in_turn(self) -> float | None:
        """Does the work alone while the other ranks wait, if it is this rank's turn; ranks take turns."""
        turn, beyond = divmod(self._times, ALONE_EVERY)
        self._times += 1
        if self._world == 1 or beyond:
            return None
        self._exchange.meet()
        return self._work() if turn % self._world == self._rank else None

    def _work(self) -> float:
        if self._reference is None:
            self._reference = Reference()
        return self._reference.timed_pass()

    def _agree(self, spent: float) -> None:
        """Sets after which step the work is next due; the same on all ranks, as it follows from their sums."""
        spent, steps = self._exchange.totals([spent, self._steps])
        affordable = math.ceil(spent * self._count / (BUDGET * steps)) if steps > 0 else 0
        self._due = max(self._count + 1, affordable)
