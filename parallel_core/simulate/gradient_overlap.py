"""Gradient reduction that overlaps with the backward pass (Li et al. 2020, "PyTorch Distributed", section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parallel_core.plan.grad_buckets import TIED, Bucket
from parallel_core.simulate.network import Exchange


def early(sums: Sequence[Bucket], backward: Mapping[int, float]) -> list[float]:
    """Seconds before the end of the last backward at which each bucket's reduction can start: when its first layer is
    done.

    `backward`: seconds of that operation's layers, by number; gradients of all other layers are done before it.
    """
    firsts = [min(0 if name == TIED else int(name.split(".")[0]) for name in one.names) for one in sums]
    return [sum(seconds for unit, seconds in backward.items() if unit < first) for first in firsts]


def exposed(early: Sequence[float], seconds: Sequence[float]) -> float:
    """Seconds from the end of the backward until all reductions are done, one after the other."""
    free = -max(early, default=0.0)
    for before, each in zip(early, seconds, strict=True):
        free = max(free, -before) + each
    return max(0.0, free)


def shortened(exchanges: Sequence[Exchange], begin: Sequence[float]) -> list[Exchange]:
    """Exposed part of each reduction after overlap with the backward pass; `begin`: as `early` returns it."""
    seconds = [one.seconds for one in exchanges]
    whole = sum(seconds)
    left = exposed(begin, seconds) / whole if whole else 0.0
    return [Exchange(left * one.seconds, one.waited, left * one.moving) for one in exchanges]
