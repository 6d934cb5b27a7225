"""Statistics of repeated time measurements. Does not import torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

_DISTURBED = 2.0
"""Repeats that took longer than this multiple of the median were disturbed, and are left out."""


def expected(seconds: ArrayLike) -> float:
    """Returns the mean of `seconds` without disturbed repeats.

    Not the median: a step is a sum of many parts, some of which are hit by short delays of the host, and sums of
    means are means of sums. The medians of short parts would contain no delays at all.
    """
    taken = np.asarray(seconds, np.float64)
    return float(taken[_undisturbed(taken)].mean())


def noise(seconds: ArrayLike) -> float:
    """Returns q in seconds, where a part that takes t on average has the variance q x t; `seconds`: [repeats, parts].

    The longer a part, the more delays it has. The variance is half the mean square of differences between successive
    repeats (von Neumann 1941), so that a host which is slower for a while, and so for all of its ranks, does not
    count as noise.
    """
    taken = np.asarray(seconds, np.float64)
    kept = _undisturbed(taken)
    both = kept[1:] & kept[:-1]
    variances = [
        0.5 * float(np.mean(np.diff(part)[pair] ** 2)) for part, pair in zip(taken.T, both.T, strict=True) if pair.any()
    ]
    return sum(variances) / float(np.sum(np.mean(taken, 0, where=kept))) if variances else 0.0


def _undisturbed(taken: np.ndarray) -> np.ndarray:
    return taken <= _DISTURBED * np.median(taken, 0)
