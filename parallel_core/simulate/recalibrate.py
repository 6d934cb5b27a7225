"""Adjusts a cost table to measured runs: one factor on all compute of a device.

A device may be slower in runs than when it was profiled: warmer, shared, other software. Messages keep their timings.
With the factor, the mean logarithm of predicted over measured steps is zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from parallel_core.analysis.quantities import ratio_text
from parallel_core.profile.table import CostTable
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import RunSpec

MOST = 8.0
"""A device that differs by more than this factor from its profile is another device."""
_CLOSE, _TURNS = 1e-3, 20

Runs = Sequence[tuple[RunSpec, float]]
"""(spec, seconds of the median step) of each run."""


class CannotRecalibrate(ValueError):
    """No factor explains the measurements."""


def scaled(table: CostTable, factor: float) -> CostTable:
    """The table with all work of a device taking `factor` times as long, and without the reference pace."""
    return table.model_copy(
        update={
            "layers": tuple(row.times(factor) for row in table.layers),
            "fixed": {
                name: {busy: curve.times(factor) for busy, curve in curves.items()}
                for name, curves in table.fixed.items()
            },
            "fully_sharded": tuple(row.times(factor, table.devices) for row in table.fully_sharded),
            "own_shards": tuple(row.times(factor) for row in table.own_shards),
            "reference": {},
        }
    )


def errors(table: CostTable, runs: Runs) -> list[float]:
    """Predicted over measured, minus 1, for each run."""
    return [predict_step(spec, table).seconds / measured - 1 for spec, measured in runs]


def factor_of(table: CostTable, runs: Runs) -> float:
    """The factor for `table`, to within 0.1 %. Raises CannotRecalibrate, and CannotPredict as `predict_step` does."""
    factor = 1.0
    for _ in range(_TURNS):
        off = sum(math.log1p(error) for error in errors(scaled(table, factor), runs)) / len(runs)
        if abs(off) < _CLOSE:
            return factor
        factor *= math.exp(-off)  # a step never grows faster than its work does, so this never overshoots
        if not 1 / MOST <= factor <= MOST:
            break
    raise CannotRecalibrate(
        f"Computing would have to take less than {ratio_text(1 / MOST)} or more than {ratio_text(MOST)} the profiled "
        "time: what these runs spent is not in computing, or their device is another one."
    )
