"""Compared with an earlier run of the same work, more devices gained less than they should have.

Threshold: less than 70 % of the earlier run's samples per second and device, on more devices. Weak scaling of a healthy
run keeps 80 to 95 % of it (Narayanan et al. 2021, table 1). The loss is attributed to the account that grew most for
the same samples a device: the earlier accounts are scaled to the samples that a device has now, so that compute that
merely follows the batch has not grown.
"""

from __future__ import annotations

from parallel_core.analysis.breakdown import COMPONENTS
from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.names import COMPONENT_NAMES
from parallel_core.analysis.quantities import ns_text, percent_text, plural_text, sentence_text
from parallel_core.parallel_spec import ParallelSpec
from parallel_core.plan import alike

LEAST = 0.70


def check(case: Case) -> Finding | None:
    before = case.earlier
    if before is None or not case.step_ns or not before.step_ns or case.layout.world <= before.layout.world:
        return None
    if not alike.same_sample(case.spec, before.spec):
        return None
    kept = _rate(case) / _rate(before)
    if kept >= LEAST:
        return None
    should = kept * case.step_ns
    grown = {name: case.share(name) * case.step_ns - before.share(name) * should for name in COMPONENTS}
    worst = max(grown, key=grown.__getitem__)
    lost = round(case.step_ns - should)
    return Finding(
        "scaling",
        f"{percent_text(kept)} of the earlier speed is left to each of {plural_text(case.layout.world, 'device')}.",
        f"{plural_text(before.layout.world, 'device')} took {ns_text(before.step_ns)} a traced step, "
        f"{case.layout.world} take {ns_text(case.step_ns)}; "
        f"for the same samples a device, {COMPONENT_NAMES[worst]} grew most, by {ns_text(max(grown[worst], 0))}.",
        _change(worst, case.spec.parallel),
        effect_ns=lost,
        tab="accounts",
    )


def _change(grown: str, split: ParallelSpec) -> str:
    """What to do about the account that grew most."""
    if grown == "bubble" and split.pp > 1:
        several = (
            "" if split.schedule == "naive" else "Raise parallel.micro_batches and train.global_batch together, or "
        )
        return sentence_text(f"{several}use a schedule that waits less.")
    return _CHANGES.get(grown, "Give each device more work: a larger train.global_batch.")


_CHANGES = {
    "compute": "Give each device more work (a larger train.global_batch), and each rank a core or GPU of its own.",
    "bubble": "Look at the accounts of each rank: the others wait for the one with the least bubble.",
    "exposed_collective": "Give each device more work (a larger train.global_batch), or use a split that sends less.",
    "exposed_p2p": "Use a split that sends less between stages, or fewer stages.",
    "data": "Read from a faster disk: each rank waits for its samples.",
}


def _rate(case: Case) -> float:
    """Samples per nanosecond and device."""
    return case.spec.train.global_batch / case.step_ns / case.layout.world
