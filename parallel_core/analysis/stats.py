"""Medians with whiskers, and speedups that know their own noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

LEAST = 5
"""The fewest values of either side from which a difference counts. Of two samples of one normal distribution, whiskers
of 1, 2, 3, 4 and 5 values each are apart in 100, 41, 16, 5 and 2 % of all cases."""

MOST_OF_IDEAL = 1.1
"""A larger share of the ideal speedup is doubted: that smaller parts fit into caches gives some percent."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Summary of `n` measured values; the whiskers are the 10th and the 90th percentile."""

    median: float
    p10: float
    p90: float
    mean: float
    n: int

    @property
    def few(self) -> bool:
        """Whether these are too few values to tell a difference from noise."""
        return self.n < LEAST


@dataclass(frozen=True, slots=True)
class Speedup:
    """`ratio` of medians; `low` and `high` combine the worst and the best whiskers of both sides."""

    ratio: float
    low: float
    high: float
    within_noise: bool
    n: int
    """Number of values of the side that has fewer."""

    @property
    def few(self) -> bool:
        """Whether these are too few values for an interval: then the ratio is within noise, however large."""
        return self.n < LEAST

    @property
    def interval(self) -> tuple[float, float] | tuple[None, None]:
        """(low, high); None for both with too few values."""
        return (None, None) if self.few else (self.low, self.high)

    @property
    def spread(self) -> float:
        """The larger distance of the interval's ends from the ratio: the number after ±."""
        return max(self.high - self.ratio, self.ratio - self.low)


def summarise(values: ArrayLike) -> Stats:
    """Stats of a sequence of numbers; raises ValueError for an empty one."""
    data = np.asarray(values, np.float64)
    if not data.size:
        raise ValueError("no values to summarise.")
    p10, median, p90 = np.percentile(data, [10, 50, 90])
    return Stats(float(median), float(p10), float(p90), float(data.mean()), int(data.size))


def speedup(base: Stats, other: Stats) -> Speedup:
    """How many times as fast `other` is as `base`; both hold times (> 0) of the same work.

    Within noise means that the whiskers of the two overlap, so that either could be the faster one, or that one of them
    has fewer than LEAST values, whose whiskers say next to nothing.
    """
    apart = base.p10 > other.p90 or other.p10 > base.p90
    return Speedup(
        ratio=base.median / other.median,
        low=base.p10 / other.p90,
        high=base.p90 / other.p10,
        within_noise=not apart or base.few or other.few,
        n=min(base.n, other.n),
    )
