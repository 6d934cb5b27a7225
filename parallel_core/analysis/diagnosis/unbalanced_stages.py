"""Pipeline stages have unequal work, so that all wait for the heaviest.

Threshold: the heaviest stage has 1.15 times the mean FLOPs, and equal stages would save 5 % of the step. Below 1.15 the
cut is as good as whole layers allow for most models; a stage that is slow without more FLOPs is a straggler.
"""

from __future__ import annotations

from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import ns_text, ratio_text
from parallel_core.plan.partition import flop_weights, min_max_cut
from parallel_core.simulate.replay import Change

HEAVIER, MATTERS = 1.15, 0.05


def check(case: Case) -> Finding | None:
    if case.spec.parallel.pp == 1 or case.typical is None:
        return None
    weights, units = flop_weights(case.spec.model), case.layout.stage_units
    work = [sum(weights[unit] for unit in own) for own in units]
    heaviest = max(range(len(work)), key=work.__getitem__)
    ratio = work[heaviest] * len(work) / max(1, sum(work))
    saved = case.saved(Change(balanced=True)) if ratio >= HEAVIER else 0
    if saved < MATTERS * case.typical.step:
        return None
    best = min_max_cut(weights, len(units))
    edges = tuple(own[0] for own in units[1:])
    change = "Leave parallel.cuts empty: the cut by FLOPs is evener." if best != edges else _other_ways(case)
    return Finding(
        "unbalanced_stages",
        f"{ratio_text(ratio)} the mean work: stage {heaviest} holds up the pipeline.",
        f"Equal stages would save {ns_text(saved)} of a step; layers cut at {', '.join(map(str, edges))}.",
        change,
        effect_ns=saved,
        tab="whatif",
        rank=case.layout.rank(case.layout.place(heaviest)),
    )


def _other_ways(case: Case) -> str:
    return f"This cut is the evenest for {case.spec.parallel.stages} stages: use fewer stages, or more equal layers."
