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
from parallel_core.analysis.quantities import listed_text

__all__ = ["RULES", "Case", "Finding", "checked", "diagnose", "judged_by_spans", "unjudged"]


class _Rule(NamedTuple):
    """A rule and the conditions under which it can judge."""

    check: Callable[[Case], Finding | None]
    timing: bool = True
    """It judges times, which say little while other processes use the devices."""
    replays: bool = False
    """It judges by a replay, which not every step has (`Case.typical`)."""
    limit: bool = False
    """It judges by the memory limit."""
    gathers: bool = False
    """It judges waits for gathers of parameters, which not every step tells from work (`Case.gathers_aside`)."""
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
    "exposed_reduction": _Rule(exposed_reduction.check, steps=1, gathers=True),
    "tensor_too_fine": _Rule(tensor_too_fine.check, steps=1),
    "needless_recompute": _Rule(needless_recompute.check, timing=False, replays=True, limit=True),
    "memory_headroom": _Rule(memory_headroom.check, timing=False, limit=True),
    "memory_surplus": _Rule(memory_surplus.check, timing=False),
    "tiny_kernels": _Rule(tiny_kernels.check, steps=1),
    "data_stall": _Rule(data_stall.check, steps=1),
    "scaling": _Rule(scaling.check),
}


def checked(case: Case) -> int:
    """Number of rules that could judge the case with its traced steps and its memory limit, and by its times."""
    return sum(_able(rule, case) for rule in _applied(case))


def unjudged(case: Case) -> str:
    """Why the other rules could not judge; '' if all could."""
    reasons = [
        (_untrusted(case), "other processes disturbed the times"),
        (not case.traced, _untraced(case)),
        (bool(case.traced) and case.typical is None, _not_replayed(case)),
        (0 < len(case.traced) < max(rule.steps for rule in RULES.values()), "one traced step is not enough for some"),
        (case.gathers_aside, "waits for gathers of parameters count as work"),
        (case.limit is None, "no memory limit is known"),
    ]
    return listed_text([why for true, why in reasons if true])


def _untrusted(case: Case) -> bool:
    """Whether other processes used the devices, so that times say little."""
    return disturbed.check(case) is not None


def _applied(case: Case, always: Collection[str] = ()) -> list[_Rule]:
    """The rules without those that judge times which cannot be trusted, except those named in `always`."""
    untrusted = _untrusted(case)
    return [rule for name, rule in RULES.items() if not (rule.timing and untrusted) or name in always]


def _able(rule: _Rule, case: Case) -> bool:
    """Whether the rule has the steps, the replay, the waits and the limit that it judges by."""
    replayed = not rule.replays or case.typical is not None
    known = not ((rule.limit and case.limit is None) or (rule.gathers and case.gathers_aside))
    return rule.steps <= len(case.traced) and replayed and known


def _untraced(case: Case) -> str:
    return "the spans of its traced steps were not kept" if case.dropped else "no step has been traced"


def _not_replayed(case: Case) -> str:
    if case.together > 1:
        return "ranks that take turns on a device cannot be replayed"
    if not case.spec.parallel.flushes:
        return "a pipeline that never flushes cannot be replayed"
    return "the step is too long to be replayed" if case.too_long else "its spans do not suffice to replay it"


def judged_by_spans(case: Case) -> int:
    """Number of rules that could judge a case with only its spec and traced steps, and possibly whether other processes
    used its devices."""
    return sum(rule.steps > 0 and _able(rule, case) for rule in RULES.values()) + (case.others is not None)


def diagnose(case: Case, always: Collection[str] = ()) -> list[Finding]:
    """All findings: urgent ones first, then by time cost, then by memory.

    While other processes use the devices, rules that judge times are skipped, except those named in `always`.
    """
    found = [rule.check(case) for rule in _applied(case, always)]
    made = [finding for finding in found if finding is not None]
    return sorted(made, key=lambda finding: (not finding.urgent, -finding.effect_ns, -finding.effect_bytes))
