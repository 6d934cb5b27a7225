"""What a CostTable must hold for a run to be predicted from it."""

from __future__ import annotations

from parallel_core.profile.table import CostTable
from parallel_core.spec import RunSpec


class CannotPredict(ValueError):
    """The table does not hold what the run needs; the message says what to profile."""


def require(spec: RunSpec, table: CostTable) -> None:
    """Raises CannotPredict where `table` is not of this run's model, precision, device or tensor width."""
    same = {
        "model": spec.model == table.model,
        "train.precision": spec.train.precision == table.precision,
        "train.device": spec.train.device == table.device,
    }
    for what, fits in same.items():
        if not fits:
            raise CannotPredict(f"the profile is of another {what}; profile this one.")
    known = {tp for tp, _ in table.conditions}
    for width in spec.parallel.tensor_ranks:
        if width not in known:
            has = ", ".join(map(str, sorted(known)))
            raise CannotPredict(f"the profile has tensor={has}, not {width}; profile that width too.")
    if spec.parallel.recompute == "selective" and "selective" not in {how for _, how in table.conditions}:
        raise CannotPredict("the profile has no recompute=selective; profile that too.")
    if spec.parallel.tensor_split == "columns":
        raise CannotPredict("columns are not profiled yet; parallel.tensor_split=pairs is.")
    if spec.parallel.sequence:
        raise CannotPredict("sequence parallelism is not profiled yet; parallel.sequence=false is.")
    if spec.parallel.world > 1 and not table.links:
        raise CannotPredict("the profile has no links; profile with two ranks or more.")
