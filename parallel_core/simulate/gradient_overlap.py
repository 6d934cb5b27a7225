"""Sums of gradients under way while backward still works (Li et al. 2020, "PyTorch Distributed", section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parallel_core.plan.grad_buckets import TIED, Bucket
from parallel_core.simulate.network import Exchange


def early(sums: Sequence[Bucket], backward: Mapping[int, float]) -> list[float]:
    """How many seconds before the end of the last backward each sum may begin: when the first of its layers is done.
    `backward` holds the seconds of the layers of that operation, by number; all others were done before it."""
    behind = [min(0 if name == TIED else int(name.split(".")[0]) for name in one.names) for one in sums]
    return [sum(seconds for unit, seconds in backward.items() if unit < first) for first in behind]


def exposed(early: Sequence[float], seconds: Sequence[float]) -> float:
    """Seconds from the end of backward until all sums are there, which go one after the other."""
    free = -max(early, default=0.0)
    for before, each in zip(early, seconds, strict=True):
        free = max(free, -before) + each
    return max(0.0, free)


def shortened(exchanges: Sequence[Exchange], begin: Sequence[float]) -> list[Exchange]:
    """What is left of each behind backward, where they may begin so early."""
    seconds = [one.seconds for one in exchanges]
    whole = sum(seconds)
    left = exposed(begin, seconds) / whole if whole else 0.0
    return [Exchange(left * one.seconds, one.waited, left * one.moving) for one in exchanges]
