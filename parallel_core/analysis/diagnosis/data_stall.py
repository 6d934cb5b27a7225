"""Ranks wait for the next batch.

Threshold: 8 % of the step spent reading data, on the rank that reads longest. Batches come from memory, which takes
less than 1 %.
"""

from __future__ import annotations

from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import ns_text, percent_text

MOST = 0.08


def check(case: Case) -> Finding | None:
    took = case.of_rank(lambda rank, account: account.parts.data)
    if not took or not case.step_ns:
        return None
    rank = max(took, key=took.__getitem__)
    lost = round(took[rank])
    if lost < MOST * case.step_ns:
        return None
    return Finding(
        "data_stall",
        f"{percent_text(lost / case.step_ns)} of the step is waiting for data.",
        f"Rank {case.called(rank)} reads for {ns_text(lost)} of {ns_text(case.step_ns)}.",
        "Prepare the next batch while this one trains, or move the data nearer to the ranks.",
        effect_ns=lost,
        tab="accounts",
        rank=case.called(rank),
    )
