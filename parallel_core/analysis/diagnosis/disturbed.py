"""Other processes use the devices, so times say little about the run.

Threshold: UNTRUSTED_ABOVE of one device's time in the timed steps. Above DISTURBED_ABOVE charts draw the run
cross-hatched, and its page says so in the verdict.
"""

from __future__ import annotations

from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.disturbance import UNTRUSTED_ABOVE
from parallel_core.analysis.quantities import percent_text


def check(case: Case) -> Finding | None:
    if case.others is None or case.others <= UNTRUSTED_ABOVE:
        return None
    shared = "; on a GPU that ranks share, each of the other ranks counts" if case.spec.train.device == "cuda" else ""
    return Finding(
        "disturbed",
        f"{percent_text(case.others)} of the time of one device went to other processes.",
        f"Measured over the timed steps, on the device that others used most{shared}. Rules that judge times were left "
        "out.",
        "Run it again while nothing else runs on these devices.",
        tab="ranks",
        urgent=True,
    )
