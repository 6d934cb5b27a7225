"""From n times one device down to the speedup that was measured: where the rest of the n went.

n devices are busy with something for W = n x step nanoseconds altogether. One device needs T for the same step, so the
speedup is T / step = n T / W, and n minus that is (W - T) n / W: every nanosecond of W - T belongs to one loss below,
so that the losses add up exactly (the accounting of Crovella and LeBlanc 1994, "Parallel performance prediction using
lost cycles analysis").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from parallel_core.analysis.breakdown import Breakdown


@dataclass(frozen=True, slots=True)
class Losses:
    """Nanoseconds over all devices, beside the `single` device's step; below 0 where splitting gained something."""

    devices: int
    single: int
    """The step of one device."""
    imbalance: int = 0
    """Waits that equal work on every rank would have spared: at most what was waited."""
    bubble: int = 0
    """The other waits: warm-up, drain, and order."""
    communication: int = 0
    recompute: int = 0
    smaller_kernels: int = 0
    """Compute beyond what one device needs for the same work: smaller operations use a device less well."""
    other: int = 0
    """Optimizer, data and the host, beyond one device's."""

    @property
    def total(self) -> int:
        """Device time of the whole step: `single` and all losses."""
        return self.single + sum(getattr(self, name) for name in NAMES)

    @property
    def speedup(self) -> float:
        return self.devices * self.single / self.total if self.total else 0.0

    def in_speedup(self, name: str) -> float:
        """What the loss `name` costs, as part of n."""
        return self.devices * getattr(self, name) / self.total if self.total else 0.0


NAMES = tuple(field.name for field in fields(Losses))[2:]
"""The losses, in the order that charts draw them."""


def losses(single: Breakdown, ranks: Iterable[Breakdown]) -> Losses:
    """Of a traced step on `ranks`, against a traced step of one device that does the same work."""
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
