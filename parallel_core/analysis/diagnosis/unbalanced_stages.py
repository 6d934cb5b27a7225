"""Finds pipeline stages with unequal work, so that all wait for the heaviest.

Threshold: a device of the heaviest stage has 1.15 times the mean FLOPs, and equal stages would save 5 % of the step.
For most models whole layers allow no better cut than 1.15. A stage that is slow without more FLOPs is a straggler.
"""

from __future__ import annotations

from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import ns_text, ratio_text
from parallel_core.layout import Layout
from parallel_core.plan.partition import flop_weights
from parallel_core.simulate.replay import Change

HEAVIER, MATTERS = 1.15, 0.05


def check(case: Case) -> Finding | None:
    if case.spec.parallel.pp == 1 or case.typical is None:
        return None
    layout, units = case.layout, case.layout.stage_units
    work = _work(case)
    heaviest = max(range(len(work)), key=work.__getitem__)
    ratio = work[heaviest] * len(work) / max(1.0, sum(work))
    saved = case.saved(Change(balanced=True)) if ratio >= HEAVIER else 0
    if saved < MATTERS * case.typical.step:
        return None
    edges = tuple(own[0] for own in units[1:])
    even = _cut_by_flops(case).stage_units == units
    change = _other_ways(case) if even else "Leave parallel.cuts empty: the cut by FLOPs is evener."
    return Finding(
        "unbalanced_stages",
        f"{ratio_text(ratio)} the mean work: stage {heaviest} holds up the pipeline.",
        f"Equal stages would save {ns_text(saved)} of a step; layers cut at {', '.join(map(str, edges))}.",
        change,
        effect_ns=saved,
        tab="whatif",
        rank=layout.rank(layout.place(heaviest)),
    )


def _work(case: Case) -> list[float]:
    """Forward FLOPs of each stage per device; stages may have different numbers of devices."""
    weights, layout = flop_weights(case.spec.model), case.layout
    devices = [copies * width for copies, width in zip(layout.replicas, layout.widths, strict=True)]
    whole = (sum(weights[unit] for unit in own) for own in layout.stage_units)
    return [flops / devices[place] for flops, place in zip(whole, layout.places, strict=True)]


def _cut_by_flops(case: Case) -> Layout:
    """The layout with the cut by FLOPs, as without `parallel.cuts`."""
    split = case.spec.parallel.model_copy(update={"cuts": None})
    return Layout.of(case.spec.model_copy(update={"parallel": split}))


def _other_ways(case: Case) -> str:
    return f"This cut is the evenest for {case.spec.parallel.stages} stages: use fewer stages, or more equal layers."
