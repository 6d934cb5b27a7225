"""The sums of gradients over the replicas are not hidden behind the backward.

Threshold: 15 % of the step in the collectives of the replicas, waits for a slower replica left out (9 % here for a
small model on two cores). PipeDream's first figure calls data parallelism communication-bound from about there
(Narayanan et al. 2019); below it, overlap of one bucket more or less decides.
"""

from __future__ import annotations

from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import ns_text, percent_text
from parallel_core.schedule.ir import REPLICA_COLLECTIVES, Kind

MOST = 0.15


def check(case: Case) -> Finding | None:
    if max(case.spec.parallel.copies) == 1 or not case.traced:
        return None
    # Of replicas of one stage the last to come waits for nobody: its time in the collective is the collective's.
    alone = [
        min(sum(case.spent(rank, kind) for kind in (*REPLICA_COLLECTIVES, Kind.UNSHARD)) for rank in group)
        for group in case.layout.data_groups()
    ]
    took = max(alone)
    if took < MOST * case.step_ns:
        return None
    what = "gathers of parameters and sums of gradients" if case.spec.parallel.zero > 2 else "all-reduce"
    batch = case.spec.train.global_batch // case.spec.parallel.dp
    return Finding(
        "exposed_reduction",
        f"{percent_text(took / case.step_ns)} of the step is the replicas' {what}, not hidden.",
        f"{ns_text(took)} of {ns_text(case.step_ns)}, with {batch} samples a replica.",
        "Raise train.global_batch: the sum costs the same whatever the batch; or use fewer replicas, or a faster link.",
        effect_ns=took,
        tab="whatif",
    )
