"""Diagnosis of a step exported by a yard, with its spans and the spec of its run, but without curves and memory."""

from __future__ import annotations

from collections.abc import Sequence

from parallel_core.analysis import diagnosis
from parallel_core.analysis.diagnosis.case import Case, Finding, Step
from parallel_core.faults import trained
from parallel_core.spec import RunSpec


def diagnose(spec: RunSpec, steps: Sequence[Step], others: float | None) -> tuple[list[Finding], int]:
    """Findings of the complete ones of these steps, and how many rules could judge them; raises ValueError if none is
    complete. `others`: share of the devices' time that other processes took, None if unknown."""
    world, shortest = spec.parallel.world, spec.parallel.stages * spec.parallel.per_step
    whole = [s for s in steps if len(s) == world and all(map(len, s.values())) and _spans(s) >= shortest]
    if not whole:
        raise ValueError("not every rank of the run has its spans here")
    case = Case(trained(spec), whole, others=others)
    return diagnosis.diagnose(case), diagnosis.judged_by_spans(case)


def _spans(step: Step) -> int:
    return sum(map(len, step.values()))
