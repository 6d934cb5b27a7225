"""The fit of the constants in `data/efficiency.json`: least squares on the relative errors of the rows named there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from parallel_core.plan.cluster.accuracy import cases, predicted
from parallel_core.plan.cluster.efficiency import Efficiency
from parallel_core.plan.cluster.plans import Floats

FREE = ("matrix", "memory", "link")
"""Constants that are fitted; the others keep the values of their sources."""
_DELTA = 1e-3
_MOST_ROUNDS = 40


def fit(start: Efficiency, keys: Sequence[str]) -> Efficiency:
    """Efficiency after Gauss-Newton over FREE from `start`, on rows with these keys. Raises KeyError for an unknown
    row."""
    known = {case.key: case for case in cases()}
    chosen = [known[key] for key in keys]

    def errors(values: Floats) -> Floats:
        made = replace(start, **dict(zip(FREE, values.tolist(), strict=True)))
        return np.array([predicted(case, made) / case.seconds - 1 for case in chosen])

    values = np.array([getattr(start, name) for name in FREE])
    for _ in range(_MOST_ROUNDS):
        here = errors(values)
        slopes = np.column_stack([(errors(values + _DELTA * unit) - here) / _DELTA for unit in np.eye(len(FREE))])
        move = np.linalg.lstsq(slopes, -here, rcond=None)[0]
        values = np.clip(values + np.clip(move, -0.1, 0.1), 0.05, 1.0)
        if np.abs(move).max() < 1e-6:
            break
    return replace(start, **dict(zip(FREE, values.tolist(), strict=True)))
