"""Why a run is slow, too large, or does not learn: rules on measurements, each in a file of its own.

    diagnose(case)        # the findings, most urgent first; [] where nothing is wrong
    RULES                 # what was looked at

A rule's docstring states its threshold and the reason for it. A rule without a finding either found nothing wrong or
lacked the data it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from parallel_core.analysis.diagnosis import (
    data_stall,
    disturbed,
    divergence,
    exposed_reduction,
    few_micro_batches,
    memory_headroom,
    memory_surplus,
    needless_recompute,
    overfitting,
    scaling,
    slow_link,
    straggler,
    tensor_too_fine,
    tiny_kernels,
    unbalanced_stages,
)
from parallel_core.analysis.diagnosis.case import Case, Finding

__all__ = ["RULES", "Case", "Finding", "checked", "diagnose", "judged_by_spans", "unjudged"]


class _Rule(NamedTuple):
    """A rule and the conditions under which it can judge."""

    check: Callable[[Case], Finding | None]
    timing: bool = True
    """It judges times, which say little while other processes use the devices."""
    replays: bool = False
    """It cannot judge steps that are too long to replay."""
    steps: int = 0
    """Traced steps that it needs besides the spec; 0 if it judges something else. With 0 a rule that reads steps counts
    as one that judged although no step was traced."""


RULES: dict[str, _Rule] = {
    "divergence": _Rule(divergence.check, timing=False),
    "overfitting": _Rule(overfitting.check, timing=False),
    "disturbed": _Rule(disturbed.check, timing=False),
    "straggler": _Rule(straggler.check, steps=straggler.LEAST),
    "slow_link": _Rule(slow_link.check, replays=True, steps=1),
    "unbalanced_stages": _Rule(unbalanced_stages.check, replays=True, steps=1),
    "few_micro_batches": _Rule(few_micro_batches.check, replays=True, steps=1),
    "exposed_reduction": _Rule(exposed_reduction.check, steps=1),
    "tensor_too_fine": _Rule(tensor_too_fine.check, steps=1),
    "needless_recompute": _Rule(needless_recompute.check, timing=False, replays=True),
    "memory_headroom": _Rule(memory_headroom.check, timing=False),
    "memory_surplus": _Rule(memory_surplus.check, timing=False),
    "tiny_kernels": _Rule(tiny_kernels.check, steps=1),
    "data_stall": _Rule(data_stall.check, steps=1),
    "scaling": _Rule(scaling.check),
}


def checked(case: Case) -> int:
    """Number of rules that could judge the case with its traced steps."""
    able = [rule for rule in RULES.values() if rule.steps <= len(case.traced)]
    return sum(not rule.replays or (bool(case.traced) and not case.too_long) for rule in able)


def unjudged(case: Case) -> str:
    """Why the other rules could not judge; '' if all could."""
    if checked(case) == len(RULES):
        return ""
    if not case.traced:
        return "the spans of its traced steps were not kept" if case.dropped else "no step has been traced"
    return "the step is too long to be replayed" if case.too_long else "one traced step is not enough for the others"


def judged_by_spans(case: Case) -> int:
    """Number of rules that could judge a case with only its spec and traced steps, and possibly whether other processes
    used its devices."""
    enough = [rule for rule in RULES.values() if 0 < rule.steps <= len(case.traced)]
    return sum(not (rule.replays and case.too_long) for rule in enough) + (case.others is not None)


def diagnose(case: Case, always: Collection[str] = ()) -> list[Finding]:
    """All findings: urgent ones first, then by time cost, then by memory.

    While other processes use the devices, rules that judge times are skipped, except those named in `always`.
    """
    disturbed_now = disturbed.check(case) is not None
    asked = [rule for name, rule in RULES.items() if not (rule.timing and disturbed_now) or name in always]
    found = [rule.check(case) for rule in asked]
    made = [finding for finding in found if finding is not None]
    return sorted(made, key=lambda finding: (not finding.urgent, -finding.effect_ns, -finding.effect_bytes))
