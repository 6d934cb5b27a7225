"""Finds sums of gradients over the replicas that are not overlapped with the backward.

Threshold: 15 % of the step in the replicas' collectives, without waits for a slower replica (9 % here for a small model
on two cores). From about this share on, PipeDream's first figure calls data parallelism communication-bound (Narayanan
et al. 2019); below it, the share depends on whether one bucket more or less is overlapped.
"""

from __future__ import annotations

from collections.abc import Sequence

from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import ns_text, percent_text, plural_text
from parallel_core.schedule.ir import REPLICA_COLLECTIVES, Kind

MOST = 0.15
SPENT = (*sorted(REPLICA_COLLECTIVES), Kind.UNSHARD, Kind.BUCKET_WAIT)


def check(case: Case) -> Finding | None:
    if max(case.spec.parallel.copies) == 1 or not case.traced:
        return None
    took, group = max((min(case.spent(rank, *SPENT) for rank in group), group) for group in case.layout.data_groups())
    if took < MOST * case.step_ns:
        return None
    what = "gathers of parameters and sums of gradients" if case.spec.parallel.zero else "all-reduce"
    return Finding(
        "exposed_reduction",
        f"{percent_text(took / case.step_ns)} of the step is the replicas' {what}, not hidden.",
        f"{ns_text(took)} of {ns_text(case.step_ns)}, with {_samples(case, group)} a replica.",
        _change(case),
        effect_ns=took,
        tab="whatif",
    )


def _change(case: Case) -> str:
    """ZeRO-2 and ZeRO-3 communicate for each micro-batch: fewer of them save more than a larger batch does."""
    split = case.spec.parallel
    if split.zero < 2 or split.micro_batches == 1:
        same = "Raise train.global_batch: the sum costs the same whatever the batch"
        return f"{same}; or use fewer replicas, or a faster link."
    again = f"replicas communicate for each of the {plural_text(split.micro_batches, 'micro-batch')}"
    if split.pp > 1:  # with fewer of them its bubble would grow
        return f"Set parallel.zero to 1, if memory allows: {again}."
    return f"Lower parallel.micro_batches, or set parallel.zero to 1, if memory allows: {again}."


def _samples(case: Case, group: Sequence[int]) -> str:
    """The samples of each of these replicas in a step, `20 to 24 samples`: the first ones may have one micro-batch
    more."""
    layout, batch = case.layout, case.spec.train.global_batch
    places = (layout.coords(rank) for rank in group)
    shares = {batch * len(layout.micro_batches_of(at.place, at.replica)) // layout.micro_batches for at in places}
    *fewest, most = sorted(shares)
    return " to ".join([*map(str, fewest), plural_text(most, "sample")])
