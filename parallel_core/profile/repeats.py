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
    return float(taken[taken <= _DISTURBED * np.median(taken)].mean())
