"""From n times one device down to the measured speedup: what the difference was lost to.

n devices are occupied for W = n x step nanoseconds in total. One device needs T for the same step, so the speedup is T
/ step = n T / W, and n minus that is (W - T) n / W: every nanosecond of W - T belongs to one loss below, so that the
losses add up exactly (the accounting of Crovella and LeBlanc 1994, "Parallel performance prediction using lost cycles
analysis").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from parallel_core.analysis.breakdown import Breakdown


@dataclass(frozen=True, slots=True)
class Losses:
    """Nanoseconds over all devices, relative to the `single` device's step; negative where splitting gained."""

    devices: int
    single: int
    """The step of one device."""
    imbalance: int = 0
    """Waits that equal work on every rank would have avoided: an upper bound is the total waiting time."""
    bubble: int = 0
    """The other waits: warm-up, drain, and order."""
    communication: int = 0
    recompute: int = 0
    smaller_kernels: int = 0
    """Compute beyond what one device needs for the same work: smaller operations use a device less efficiently. Also
    what other processes, busy neighbours or the pace of the host added, which spans do not tell apart."""
    other: int = 0
    """Optimizer, data and host time beyond one device's."""

    @property
    def total(self) -> int:
        """Device time of the whole step: `single` and all losses."""
        return self.single + sum(getattr(self, name) for name in NAMES)

    @property
    def speedup(self) -> float:
        """How many times as fast as one device; 0 without any time."""
        return self.devices * self.single / self.total if self.total else 0.0

    def in_speedup(self, name: str) -> float:
        """Cost of the loss `name`, as a part of n."""
        return self.devices * getattr(self, name) / self.total if self.total else 0.0


NAMES = tuple(field.name for field in fields(Losses))[2:]
"""The losses, in the order of charts."""


def losses(single: Breakdown, ranks: Iterable[Breakdown]) -> Losses:
    """Losses of a traced step on `ranks`, against a traced step of one device that does the same work."""
    parts = list(ranks)

    def over(*names: str) -> int:
        return sum(getattr(part, name) for part in parts for name in names)

    work = [part.compute + part.recompute for part in parts]
    waited = over("bubble")
    uneven = min(waited, len(parts) * max(work, default=0) - sum(work))
    rest = ("optimizer", "data", "other")
    return Losses(
        devices=len(parts),
        single=single.total,
        imbalance=uneven,
        bubble=waited - uneven,
        communication=over("exposed_p2p", "exposed_collective") - single.communication - single.bubble,
        recompute=over("recompute") - single.recompute,
        smaller_kernels=over("compute") - single.compute,
        other=over(*rest) - sum(getattr(single, name) for name in rest),
    )
