"""What something takes that was timed again and again. No torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

_DISTURBED = 2.0
"""Repeats that took so many medians say what else went on, not what this takes."""


def expected(seconds: ArrayLike) -> float:
    """The mean of `seconds` without disturbed ones.

    Not the median: a step is a sum of many parts, short hiccups of the host fall into some of them, and sums of means
    are means of sums. The medians of short parts have no hiccup in them at all.
    """
    taken = np.asarray(seconds, np.float64)
    return float(taken[_undisturbed(taken)].mean())


def noise(seconds: ArrayLike) -> float:
    """Seconds q of which a part that takes t on average has the variance q x t, of `seconds` (repeats x parts).

    Hiccups fall into a part the more the longer it takes. The variance is that between a repeat and the next one
    (von Neumann 1941), halved: a host that is slower for a while is no noise, since it is slower for all of its ranks.
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
