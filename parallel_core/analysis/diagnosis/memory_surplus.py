"""A rank holds memory that neither the model nor its activations explain.

Threshold: 1.35 times its prediction and 32 MiB more. Predictions of healthy runs are within 10 %; those of small models
are off by a larger factor, but not by tens of megabytes.
"""

from __future__ import annotations

from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import bytes_text
from parallel_core.plan.memory import counted_stages

FACTOR, LEAST = 1.35, 32 << 20


def check(case: Case) -> Finding | None:
    if not case.peaks or not (stages := counted_stages(case.spec)):
        return None
    expected = {case.layout.coords(memory.rank).place: memory.total for memory in stages}
    surplus = {rank: peak - expected[case.layout.coords(rank).place] for rank, peak in case.peaks.items()}
    rank = max(surplus, key=surplus.__getitem__)
    plan = expected[case.layout.coords(rank).place]
    if surplus[rank] < LEAST or case.peaks[rank] < FACTOR * plan:
        return None
    return Finding(
        "memory_surplus",
        f"{bytes_text(surplus[rank])} on rank {rank} is held beyond what the model needs.",
        f"It held {bytes_text(case.peaks[rank])} at its peak, {bytes_text(plan)} was predicted.",
        "Look for tensors that stay alive on this rank: caches, graphs that are kept, logged tensors.",
        effect_bytes=surplus[rank],
        tab="memory",
        rank=rank,
    )
