"""The pipeline has too few micro-batches to hide its warm-up and drain, or runs one stage at a time.

Threshold: fewer than 4 micro-batches a stage ("negligible when M >= 4 K", Huang et al. 2019, section 2.3), a bubble of
25 % of the step, and twice as many (or 1F1B in place of the naive schedule) would save 8 % of it.
"""

from __future__ import annotations

from pydantic import ValidationError

from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import ns_text, percent_text
from parallel_core.simulate.replay import Change

ENOUGH, BUBBLE, MATTERS = 4, 0.25, 0.08


def check(case: Case) -> Finding | None:
    split = case.spec.parallel
    bubble = case.share("bubble")
    naive = split.schedule == "naive" and split.micro_batches > 1
    few = split.micro_batches < ENOUGH * split.pp
    if split.pp == 1 or case.typical is None or bubble < BUBBLE or not (few or naive):
        return None
    change, words = _better(case, naive)
    saved = case.saved(change) if change else 0
    if change is None or saved < MATTERS * case.typical.step:
        return None
    what = "the naive schedule runs one stage at a time" if naive else f"{split.micro_batches} micro-batches"
    return Finding(
        "few_micro_batches",
        f"{percent_text(bubble)} of the step is bubble: {what} on {split.pp} stages.",
        f"{words} would save {ns_text(saved)} of a step, by replaying the measured one.",
        f"{'Set parallel.schedule to 1f1b' if naive else f'Raise parallel.micro_batches to {change.micro_batches}'}.",
        effect_ns=saved,
        tab="whatif",
    )


def _better(case: Case, naive: bool) -> tuple[Change | None, str]:
    """What would be better and can be done with this batch."""
    if naive:
        return Change(schedule="1f1b"), "Schedule 1F1B"
    for factor in (4, 2):
        m = case.spec.parallel.micro_batches * factor
        try:
            case.saved(Change(micro_batches=m))
        except ValidationError:
            continue
        return Change(micro_batches=m), f"{m} micro-batches"
    return None, ""
