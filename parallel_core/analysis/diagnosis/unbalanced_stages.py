"""Finds pipeline stages with unequal work, so that all wait for the heaviest.

Threshold: a device of the stage that computed longest has 1.15 times the mean FLOPs, recomputation included, and equal
stages would save 5 % of the step. For most models whole layers allow no better cut than 1.15. A stage that computed
longest without more FLOPs has a straggler: fewer layers would not make another stage the heaviest.
"""

from __future__ import annotations

from collections.abc import Sequence

from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import ns_text, ratio_text
from parallel_core.layout import Layout
from parallel_core.plan.partition import flop_weights, min_max_cut_over
from parallel_core.plan.strategy import step_flops
from parallel_core.schedule.ir import Kind
from parallel_core.simulate.measured import Measured
from parallel_core.simulate.replay import Change

HEAVIER, MATTERS = 1.15, 0.05


def check(case: Case) -> Finding | None:
    if case.spec.parallel.pp == 1 or case.typical is None:
        return None
    layout, units = case.layout, case.layout.stage_units
    work, took = _by_device(layout, step_flops(case.spec)), _measured(case.typical, layout)
    heaviest = max(range(len(took)), key=took.__getitem__)
    ratio = work[heaviest] * len(work) / max(1.0, sum(work))
    saved = case.saved(Change(balanced=True)) if ratio >= HEAVIER else 0
    if saved < MATTERS * case.typical.step:
        return None
    edges = tuple(own[0] for own in units[1:])
    return Finding(
        "unbalanced_stages",
        f"{ratio_text(ratio)} the mean work: stage {heaviest} holds up the pipeline.",
        f"Equal stages would save {ns_text(saved)} of a step; layers cut at {', '.join(map(str, edges))}.",
        _change(case, max(work)),
        effect_ns=saved,
        tab="whatif",
        rank=layout.rank(layout.place(heaviest)),
    )


def _by_device(layout: Layout, flops: Sequence[int]) -> list[float]:
    """FLOPs of each stage per device, from those of each layer; stages may have different numbers of devices."""
    devices = [copies * width for copies, width in zip(layout.replicas, layout.widths, strict=True)]
    whole = (sum(flops[unit] for unit in own) for own in layout.stage_units)
    return [work / devices[place] for work, place in zip(whole, layout.places, strict=True)]


def _measured(typical: Measured, layout: Layout) -> list[float]:
    """Relative time that a device computes in each stage: a median forward and backward, of which each of several
    replicas executes its part."""
    found = []
    for stage, place in enumerate(layout.places):
        parts = [typical.median(kind, stage) for kind in (Kind.F, Kind.B, Kind.W)]
        if parts[1] is None:
            parts[1:] = [typical.median(Kind.BW, stage)]
        found.append(sum(cost.work + cost.again for cost in parts if cost) / layout.replicas[place])
    return found


def _change(case: Case, most: float) -> str:
    """What to do where a device of the heaviest stage has `most` FLOPs."""
    spec, forward = case.spec, flop_weights(case.spec.model)
    split = spec.parallel.model_copy(update={"cuts": None})
    evenest = f"This cut is the evenest for {spec.parallel.stages} stages: use fewer stages, or more equal layers."
    by_flops = Layout.of(spec.model_copy(update={"parallel": split}))
    if max(_by_device(by_flops, step_flops(spec))) < most:
        return "Leave parallel.cuts empty: the cut by FLOPs is evener."
    if spec.parallel.recompute_layers is None:
        if cuts := _evener(case, most):
            return f"The cut by FLOPs ignores recomputation: set parallel.cuts to {', '.join(map(str, cuts))}."
        return evenest
    plain = _by_device(case.layout, forward)
    if max(plain) * len(plain) < HEAVIER * sum(plain):
        return "Spread parallel.recompute_layers evenly over the stages."
    return evenest


def _evener(case: Case, most: float) -> tuple[int, ...]:
    """The cuts that are the evenest with recomputation; () if a device of the heaviest stage has `most` FLOPs then,
    too."""
    layout, flops = case.layout, step_flops(case.spec)
    devices = tuple(layout.replicas[place] * layout.widths[place] for place in layout.places)
    cuts = min_max_cut_over(tuple(flops), devices)
    split = case.spec.parallel.model_copy(update={"cuts": cuts})
    cut = Layout.of(case.spec.model_copy(update={"parallel": split}))
    return cuts if max(_by_device(cut, flops)) < most else ()
