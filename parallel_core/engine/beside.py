"""The reference work beside the timed steps of a run: how fast its devices were then, whatever the profile saw."""

from __future__ import annotations

import math
import time

from parallel_core.engine.device import Device
from parallel_core.engine.neighbours import Neighbours
from parallel_core.observe.reference import Reference
from parallel_core.spec import RunSpec

BUDGET = 0.02
"""Of the time of the steps that the work may take; where they are short, it runs behind every few of them."""


class Beside:
    """Every rank of the world calls `behind` behind each timed step.

    All ranks do the work at once, so that the devices are as busy as in a step, and go on together. Not on CUDA, and
    not where the pipeline stays full: no moment lies between two steps there.
    """

    def __init__(self, spec: RunSpec, device: Device, neighbours: Neighbours) -> None:
        self._on = spec.trace.reference and device.kind == "cpu" and spec.parallel.flushes
        self._neighbours = neighbours
        self._reference: Reference | None = None
        self._count, self._due = 0, 1
        self._steps = self._spent = 0.0

    def behind(self, seconds: float) -> tuple[float, float] | None:
        """(processor seconds of the work, seconds that it kept this rank from its next step) behind a step of
        `seconds`; None where none is due."""
        self._count += 1
        self._steps += seconds
        if not self._on or self._count < self._due:
            return None
        began = time.perf_counter()
        took = self._work()
        self._agree(self._spent + time.perf_counter() - began)
        lasted = time.perf_counter() - began
        self._spent += lasted
        return took, lasted

    def _work(self) -> float:
        if self._reference is None:
            self._reference = Reference()
        return self._reference.once()

    def _agree(self, spent: float) -> None:
        """The step behind which it is due again, the same on all ranks: they go by their sums."""
        spent, steps = self._neighbours.totals([spent, self._steps])
        affordable = math.ceil(spent * self._count / (BUDGET * steps)) if steps > 0 else 0
        self._due = max(self._count + 1, affordable)
