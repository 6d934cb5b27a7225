"""Fewer points that draw the same curve."""

from __future__ import annotations

import numpy as np


def thin(values: np.ndarray, buckets: int) -> np.ndarray:
    """Indices, ascending, of each bucket's least, greatest, last and not-a-number values."""
    n = len(values)
    edges = np.linspace(0, n, buckets + 1).astype(np.int64)
    starts = edges[:-1]
    owner = np.searchsorted(edges, np.arange(n), side="right") - 1
    nan = np.isnan(values)
    low, high = np.where(nan, np.inf, values), np.where(nan, -np.inf, values)
    first_low = np.flatnonzero(low == np.minimum.reduceat(low, starts)[owner])
    first_high = np.flatnonzero(high == np.maximum.reduceat(high, starts)[owner])
    # The first of equal extremes stands for them all: a flat line would otherwise keep every point.
    picks = [first_low[np.unique(owner[first_low], return_index=True)[1]]]
    picks += [first_high[np.unique(owner[first_high], return_index=True)[1]]]
    nans = np.flatnonzero(nan)
    picks += [nans[np.unique(owner[nans], return_index=True)[1]], edges[1:] - 1]
    return np.unique(np.concatenate(picks))
