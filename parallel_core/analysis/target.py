"""Steps of a run to a given loss: the measure when runs differ in their updates, not only in step time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

WINDOW = 0.05
"""Losses are averaged over this share of the shortest run, at least LEAST steps: a batch's loss is noisy."""
LEAST, MOST = 5, 1000
"""Steps of a window; MOST bounds the time that a very long run takes, which is the product of both."""


def window(lengths: Iterable[int]) -> int:
    """Steps over which the losses of runs of these lengths are averaged; the same for all of them."""
    return min(MOST, max(LEAST, round(WINDOW * min(lengths, default=0))))


def smoothed(loss: ArrayLike, steps: int) -> NDArray[np.float64]:
    """Running mean of the losses [n] over `steps` steps, from the first full window on: [n - steps + 1], empty for
    fewer; nan stays nan."""
    values = np.asarray(loss, np.float64)
    if len(values) < steps:
        return np.empty(0)
    return np.lib.stride_tricks.sliding_window_view(values, steps).mean(axis=1)


def least(loss: ArrayLike, steps: int) -> float:
    """The lowest of the losses [n] smoothed over `steps` steps; inf if none is finite."""
    values = smoothed(loss, steps)
    finite = values[np.isfinite(values)]
    return float(finite.min()) if len(finite) else float("inf")


def reached(loss: ArrayLike, target: float, steps: int) -> int | None:
    """Index of the first of the losses [n] at which their mean over `steps` steps is at most `target`; None if it never
    is."""
    below = np.flatnonzero(smoothed(loss, steps) <= target)
    return int(below[0]) + steps - 1 if len(below) else None
