"""Other processes use the devices, so that times say little about the run.

Threshold: a quarter of the device time of the timed steps. Ranks that wait give their device away, so single per cents
are noise; at a quarter, every ratio between runs may be off by as much.
"""

from __future__ import annotations

from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import percent_text

MOST = 0.25


def check(case: Case) -> Finding | None:
    if case.others is None or case.others <= MOST:
        return None
    return Finding(
        "disturbed",
        f"{percent_text(case.others)} of the time of one device went to other processes.",
        "Measured over the timed steps, on the device that others used most; on a GPU that ranks share, each of "
        "the other ranks counts. Rules that judge by times were not asked.",
        "Run it again while nothing else runs on these devices.",
        tab="ranks",
        urgent=True,
    )
