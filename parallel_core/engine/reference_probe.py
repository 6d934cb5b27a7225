"""The reference work beside the timed steps of a run: how fast its devices were then, whatever the profile saw.

On all devices at once, and now and then on one of them alone right behind that: within a few milliseconds no host
drifts, so what the work takes longer in company is what the devices take from each other (a core that two of them are
halves of, the memory bus), and the rest of what differs between runs is the host's own pace.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from parallel_core.engine.device import Device
from parallel_core.engine.interference import Interference
from parallel_core.observe.reference import Reference
from parallel_core.spec import RunSpec

BUDGET = 0.04
"""Of the time of the steps that the work may take; where they are short, it runs behind every few of them."""
ALONE_EVERY = 2
"""Times that all do the work to one that somebody does it alone."""


class ProbeReading(NamedTuple):
    """Processor seconds of the work of this rank, with all at work and alone (None where it was not its turn), and the
    seconds that both kept it from its next step."""

    together: float
    alone: float | None
    lasted: float


class ReferenceProbe:
    """Every rank of the world calls `behind` behind each timed step.

    All ranks do the work at once, so that the devices are as busy as in a step, now and then one alone, and go on
    together. Not on CUDA, and not where the pipeline stays full: no moment lies between two steps there.
    """

    def __init__(self, spec: RunSpec, device: Device, neighbours: Interference, rank: int = 0) -> None:
        self._on = spec.trace.reference and device.kind == "cpu" and spec.parallel.flushes
        self._neighbours, self._rank, self._world = neighbours, rank, spec.parallel.world
        self._reference: Reference | None = None
        self._count, self._due, self._times = 0, 1, 0
        self._steps = self._spent = 0.0

    def behind(self, seconds: float) -> ProbeReading | None:
        """What the work took behind a step of `seconds`; None where none is due."""
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
        """Once all have done it, every now and then one of them again while the others wait: each in its turn."""
        turn, beyond = divmod(self._times, ALONE_EVERY)
        self._times += 1
        if self._world == 1 or beyond:
            return None
        self._neighbours.total(0.0)
        return self._work() if turn % self._world == self._rank else None

    def _work(self) -> float:
        if self._reference is None:
            self._reference = Reference()
        return self._reference.once()

    def _agree(self, spent: float) -> None:
        """The step behind which it is due again, the same on all ranks: they go by their sums."""
        spent, steps = self._neighbours.totals([spent, self._steps])
        affordable = math.ceil(spent * self._count / (BUDGET * steps)) if steps > 0 else 0
        self._due = max(self._count + 1, affordable)
