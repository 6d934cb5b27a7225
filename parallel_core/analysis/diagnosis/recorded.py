"""Diagnosis of a step that a yard exported: its spans and the spec of its run are here, not its curves and memory."""

from __future__ import annotations

from collections.abc import Sequence

from parallel_core.analysis import diagnosis
from parallel_core.analysis.diagnosis.case import Case, Finding, Step
from parallel_core.faults import broken
from parallel_core.spec import RunSpec


def diagnose(spec: RunSpec, steps: Sequence[Step], others: float | None) -> tuple[list[Finding], int]:
    """Findings of the whole ones of these steps, and how many rules could judge them; raises ValueError where none is
    whole. `others` = part of the devices' time that other processes took, None where that is not known."""
    world, shortest = spec.parallel.world, spec.parallel.stages * spec.parallel.per_step
    whole = [s for s in steps if len(s) == world and all(map(len, s.values())) and _spans(s) >= shortest]
    if not whole:
        raise ValueError("not every rank of the run has its spans here")
    case = Case(broken(spec).model_copy(update={"inject": ()}), whole, others=others)
    return diagnosis.diagnose(case), diagnosis.judged_by_spans(case)


def _spans(step: Step) -> int:
    return sum(map(len, step.values()))
