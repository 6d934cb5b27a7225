"""Whether two runs learn the same: the largest relative difference of their losses, step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True)
class Parity:
    """`largest`: max over the `steps` common steps of |a - b| / |a|, reached at step `at` (-1 without any)."""

    largest: float
    at: int
    steps: int


def parity(steps: ArrayLike, losses: ArrayLike, other_steps: ArrayLike, other_losses: ArrayLike) -> Parity:
    """Compares another run with a reference on the steps that both have. `steps` [n] and `losses` [n] of the reference,
    [m] of the other; each step at most once a run.

    A loss that is not finite differs infinitely from a finite one, and not at all from an equal one (NaN equals NaN).
    """
    common, mine, theirs = np.intersect1d(np.asarray(steps), np.asarray(other_steps), return_indices=True)
    if not common.size:
        return Parity(0.0, -1, 0)
    a, b = np.asarray(losses, np.float64)[mine], np.asarray(other_losses, np.float64)[theirs]
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(finite, np.abs(a - b) / np.abs(a), np.inf)
    relative = np.where(same, 0.0, relative)
    worst = int(relative.argmax())
    return Parity(float(relative[worst]), int(common[worst]), int(common.size))
