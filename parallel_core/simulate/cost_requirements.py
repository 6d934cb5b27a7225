"""What a CostTable must contain to predict a run."""

from __future__ import annotations

from collections.abc import Sequence

from parallel_core.outline.splits import IN_WORDS
from parallel_core.profile.request import other_kernels
from parallel_core.profile.table import CostTable
from parallel_core.spec import RunSpec


class CannotPredict(ValueError):
    """The table lacks what the run needs; the message says what to profile."""


class NeverTimed(CannotPredict):
    """The links between two hosts of the run were never timed."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self.pair = first, second = pairs[0]
        more = f" (nor those of {len(pairs) - 1} more pairs)" if len(pairs) > 1 else ""
        super().__init__(f"the links between {first} and {second} were never timed{more}; time them on Fleet.")


def require(spec: RunSpec, table: CostTable, together: int) -> None:
    """Raises CannotPredict where `table` is for another model, precision, device, kernels or tensor width than the
    run's.
    `together`: ranks on the fullest host."""
    same = {
        "model": spec.model == table.model,
        "train.precision": spec.train.precision == table.precision,
        "train.device": spec.train.device == table.device,
        "train.deterministic": other_kernels(spec) == table.deterministic,
    }
    for what, fits in same.items():
        if not fits:
            raise CannotPredict(f"the profile is of another {what}; profile this one.")
    split = spec.parallel
    by = IN_WORDS[split.cut]
    known = {tp for tp, _, how in table.conditions if tp == 1 or how == split.cut}
    for width in split.tensor_ranks:
        if width not in known:
            has = ", ".join(map(str, sorted(known)))
            raise CannotPredict(f"the profile has tp={has}{by}, not {width}; profile that width too.")
    if split.recompute == "selective" and ("selective", split.cut) not in {
        (how, by) for _, how, by in table.conditions
    }:
        raise CannotPredict(f"the profile has no recompute=selective{by}; profile that too.")
    if together > 1 and not table.links:
        raise CannotPredict("the profile has no links; profile with two ranks or more.")
    if split.zero_backend == "fully_shard" and together < split.world:
        raise CannotPredict("fully_shard is timed on one host; over several, Trainyard's own sharding is predicted.")
    if split.zero_backend == "fully_shard" and not table.fully_sharded:
        raise CannotPredict("the profile is from before fully_shard was timed; profile the model again.")
