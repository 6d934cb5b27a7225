"""Compared with an earlier run of the same work, more devices gained less than they should have.

Threshold: less than 70 % of the earlier run's samples per second and device, on more devices. Weak scaling of a healthy
run keeps 80 to 95 % of it (Narayanan et al. 2021b, table 1). The loss is attributed to the account that grew most for
the same samples a device: the earlier accounts are scaled to the samples that a device has now, so that compute that
merely follows the batch has not grown. Where another rule says what made that account grow, such as an uneven cut, its
finding says what to do: more micro-batches would not fill what the heaviest stage leaves idle, nor make messages over a
slow link fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from parallel_core.analysis.breakdown import COMPONENTS
from parallel_core.analysis.diagnosis import (
    exposed_reduction,
    few_micro_batches,
    slow_link,
    straggler,
    tensor_too_fine,
    tiny_kernels,
    unbalanced_stages,
)
from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.names import COMPONENT_NAMES
from parallel_core.analysis.quantities import ns_text, percent_text, plural_text, sentence_text
from parallel_core.parallel_spec import ParallelSpec
from parallel_core.plan import alike

LEAST = 0.70
EXPLAINS = 0.5
"""Share of what an account grew by that a cause must cost."""


def check(case: Case) -> Finding | None:
    before = case.earlier
    if before is None or not case.step_ns or not before.step_ns or case.layout.world <= before.layout.world:
        return None
    if not alike.same_sample(case.spec, before.spec):
        return None
    times = _times(case, before)
    kept = _rate(case, times.later) / _rate(before, times.earlier)
    if kept >= LEAST:
        return None
    should = kept * times.later
    grown = {name: case.share(name) * times.later - before.share(name) * should for name in COMPONENTS}
    worst = max(grown, key=grown.__getitem__)
    return Finding(
        "scaling",
        f"{percent_text(kept)} of the earlier speed is left to each of {plural_text(case.layout.world, 'device')}.",
        f"{plural_text(before.layout.world, 'device')} took {ns_text(times.earlier)} {times.words}, "
        f"{case.layout.world} take {ns_text(times.later)}; "
        f"for the same samples a device, {COMPONENT_NAMES[worst]} grew most, by {ns_text(max(grown[worst], 0))}.",
        _turns(case) or _cause(case, worst, grown[worst]) or _change(worst, case.spec.parallel),
        effect_ns=round(times.later - should),
        tab="accounts",
    )


class _Times(NamedTuple):
    """Nanoseconds of a step of two runs, and what step that is."""

    earlier: int
    later: int
    words: str


def _times(case: Case, before: Case) -> _Times:
    """All timed steps of both, as in the speedups beside this finding; the traced ones where those are not known."""
    if before.timed_ns and case.timed_ns:
        return _Times(before.timed_ns, case.timed_ns, "a step")
    return _Times(before.step_ns, case.step_ns, "a traced step")


def _turns(case: Case) -> str:
    """What to do where ranks share devices: what one waits another computes, so nothing else makes them faster."""
    if case.together == 1:
        return ""
    return f"Give each rank a core or GPU of its own, or use fewer: up to {case.together} of them take turns on one."


def _cause(case: Case, grown: str, by: float) -> str:
    """What another rule says made that account grow `by` so many ns, and what to do; '' if none explains it."""
    found = [one for rule in _RULES.get(grown, ()) if (one := rule(case)) and one.effect_ns >= EXPLAINS * by]
    worst = max(found, key=lambda one: one.effect_ns, default=None)
    return f"{worst.title} {worst.change}" if worst else ""


_RULES: dict[str, tuple[Callable[[Case], Finding | None], ...]] = {
    "compute": (straggler.check, tiny_kernels.check),
    "bubble": (straggler.check, unbalanced_stages.check, slow_link.check, few_micro_batches.check),
    "exposed_p2p": (slow_link.check,),
    "exposed_collective": (tensor_too_fine.check, exposed_reduction.check),
}
"""Account -> the rules that may say why it grew."""


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


def _rate(case: Case, step_ns: int) -> float:
    """Samples per nanosecond and device."""
    return case.spec.train.global_batch / step_ns / case.layout.world
