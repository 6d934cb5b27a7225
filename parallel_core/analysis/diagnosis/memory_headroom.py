"""A rank is so close to its memory limit that a longer sequence or fragmentation would end the run.

Threshold: 92 % of the limit. CUDA's caching allocator loses a few per cent to fragmentation, and the metered step need
not be the largest.
"""

from __future__ import annotations

from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import bytes_text, percent_text
from parallel_core.plan.memory import find_fixes

MOST = 0.92


def check(case: Case) -> Finding | None:
    if not case.peaks or not case.limit:
        return None
    rank = max(case.peaks, key=case.peaks.__getitem__)
    left = case.limit - case.peaks[rank]
    if case.peaks[rank] <= MOST * case.limit:
        return None
    fixes = find_fixes(case.spec, int(case.limit * 0.8))
    change = f"{fixes[0].text[:1].upper()}{fixes[0].text[1:]}." if fixes else "Use devices with more memory."
    return Finding(
        "memory_headroom",
        f"{bytes_text(max(left, 0))} of memory is left on rank {rank}.",
        f"Its peak took {percent_text(case.peaks[rank] / case.limit)} of {bytes_text(case.limit)}.",
        change,
        effect_bytes=case.peaks[rank] - int(MOST * case.limit),
        tab="memory",
        rank=rank,
    )
