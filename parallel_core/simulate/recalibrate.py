"""A cost table brought up to what runs measured: one factor on everything that a device computes.

A device may be slower in runs than it was when profiled: warmer, shared, other software. Messages stay as they were
timed. The factor is the one by which predicted steps are, in the mean of logarithms, the measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from parallel_core.analysis.quantities import ratio_text
from parallel_core.profile.table import CostTable
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import RunSpec

MOST = 8.0
"""A device that differs more than that from its profile is another device."""
_CLOSE, _TURNS = 1e-3, 20

Runs = Sequence[tuple[RunSpec, float]]
"""Runs, and the seconds of their median step."""


class CannotRecalibrate(ValueError):
    """No factor explains what was measured."""


def scaled(table: CostTable, factor: float) -> CostTable:
    """The table with all work of a device `factor` times as long; at which pace of the device, it no longer says."""
    return table.model_copy(
        update={
            "layers": tuple(row.times(factor) for row in table.layers),
            "fixed": {
                name: {busy: curve.times(factor) for busy, curve in curves.items()}
                for name, curves in table.fixed.items()
            },
            "own_shards": tuple(row.times(factor) for row in table.own_shards),
            "reference": {},
        }
    )


def errors(table: CostTable, runs: Runs) -> list[float]:
    """Predicted over measured, less 1, of each run."""
    return [predict_step(spec, table).seconds / measured - 1 for spec, measured in runs]


def factor_of(table: CostTable, runs: Runs) -> float:
    """What to scale `table` by, to within 0.1 %. Raises CannotRecalibrate, and CannotPredict as `predict_step` does."""
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
