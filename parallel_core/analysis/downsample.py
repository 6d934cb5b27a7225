"""Fewer points that draw the same curve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Means:
    """What the points kept of a longer series stand for: each for the values after the one kept before it, up to its
    own. Both arrays have the length of the points kept."""

    mean: NDArray[np.float64]
    """Mean of these values, without those that are not finite; 0 if none is."""
    count: NDArray[np.int64]
    """How many of them are finite."""

    @staticmethod
    def of(values: NDArray[np.float64], kept: NDArray[np.int64]) -> Means:
        """`kept` = indices of at least one of the values, ascending. Values after the last index count for it."""
        finite = np.isfinite(values)
        starts = np.concatenate([[0], kept[:-1] + 1])
        count = np.add.reduceat(finite.astype(np.int64), starts)
        return Means(np.add.reduceat(np.where(finite, values, 0.0), starts) / np.maximum(count, 1), count)

    def times(self, scale: float) -> Means:
        """The same of values in another unit."""
        return Means(self.mean * scale, self.count)


def thin(values: np.ndarray, buckets: int) -> np.ndarray:
    """Indices, ascending, of the first value and of each bucket's least, greatest, last and NaN values, for at most
    `buckets` buckets.

    Bucket edges stay where they were with fewer values until there are about half as many again, so that the points of
    a growing curve stay.
    """
    n = len(values)
    starts = np.arange(0, n, _width(n, buckets))
    edges = np.append(starts, n)
    owner = np.searchsorted(edges, np.arange(n), side="right") - 1
    nan = np.isnan(values)
    low, high = np.where(nan, np.inf, values), np.where(nan, -np.inf, values)
    first_low = np.flatnonzero(low == np.minimum.reduceat(low, starts)[owner])
    first_high = np.flatnonzero(high == np.maximum.reduceat(high, starts)[owner])
    # The first of equal extremes stands for them all: a flat line would otherwise keep every point.
    picks = [first_low[np.unique(owner[first_low], return_index=True)[1]]]
    picks += [first_high[np.unique(owner[first_high], return_index=True)[1]]]
    nans = np.flatnonzero(nan)
    picks += [nans[np.unique(owner[nans], return_index=True)[1]], edges[1:] - 1, starts[:1]]
    return np.unique(np.concatenate(picks))


def _width(n: int, buckets: int) -> int:
    """Values in a bucket: the least sufficient one of 1, 2, 3, 4, 6, 8, 12, ..."""
    power = 1
    while 2 * power * buckets < n:
        power *= 2
    return next(width for width in (power, 3 * power // 2, 2 * power) if width * buckets >= n)
