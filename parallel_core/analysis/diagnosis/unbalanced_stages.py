"""Finds pipeline stages with unequal work, so that all wait for the heaviest.

Threshold: a device of the stage that computed longest has 1.15 times the mean FLOPs, recomputation included, and equal
stages would save 5 % of the step. For most models whole layers allow no better cut than 1.15. A stage that computed
longest without more FLOPs has a straggler: fewer layers would not make another stage the heaviest.

Whole layers seldom make equal stages, so another cut is advised, and its effect told, by a replay of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
    layout = case.layout
    work, took = _by_device(layout, step_flops(case.spec)), _measured(case.typical, layout)
    heaviest = max(range(len(took)), key=took.__getitem__)
    ratio = work[heaviest] * len(work) / max(1.0, sum(work))
    saved = case.saved(Change(balanced=True)) if ratio >= HEAVIER else 0
    if saved < MATTERS * case.typical.step:
        return None
    better = _change(case, max(work))
    cut = f", layers cut at {_edges(better.layout)} {ns_text(better.saved)}; they are" if better.layout else "; layers"
    return Finding(
        "unbalanced_stages",
        f"{ratio_text(ratio)} the mean work: stage {heaviest} holds up the pipeline.",
        f"Equal stages would save {ns_text(saved)} of a step{cut} cut at {_edges(layout)}.",
        better.do,
        effect_ns=better.saved or saved,
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


class _Better(NamedTuple):
    """What to do; if it is another cut, its layout, and the nanoseconds of a step that it would save."""

    do: str
    layout: Layout | None = None
    saved: int = 0


def _change(case: Case, most: float) -> _Better:
    """What to do where a device of the heaviest stage has `most` FLOPs."""
    split, forward = case.spec.parallel, flop_weights(case.spec.model)
    if by_flops := _cut(case, None, most):
        return by_flops._replace(do="Leave parallel.cuts empty: the cut by FLOPs is evener.")
    if split.recompute_layers is None:
        cuts = _evenest(case)
        if again := _cut(case, cuts, most):
            return again._replace(do=f"The cut by FLOPs ignores recomputation: set parallel.cuts to {_listed(cuts)}.")
    else:
        plain = _by_device(case.layout, forward)
        if max(plain) * len(plain) < HEAVIER * sum(plain):
            return _Better("Spread parallel.recompute_layers evenly over the stages.")
    about = f"This cut is about the evenest for {split.stages} stages"
    return _Better(f"{about}: use fewer stages, or more equal layers.")


def _cut(case: Case, cuts: tuple[int, ...] | None, most: float) -> _Better | None:
    """The run with these cuts; None if a device of the heaviest stage has `most` FLOPs then, too, or little is
    saved."""
    split = case.spec.parallel.model_copy(update={"cuts": cuts})
    after = case.spec.model_copy(update={"parallel": split})
    layout = Layout.of(after)
    if max(_by_device(layout, step_flops(after))) >= most:
        return None
    saved = case.saved_by_cuts(after)
    return _Better("", layout, saved) if saved >= MATTERS * case.step_ns else None


def _evenest(case: Case) -> tuple[int, ...]:
    """The cuts that are the evenest with recomputation."""
    layout = case.layout
    devices = tuple(layout.replicas[place] * layout.widths[place] for place in layout.places)
    return min_max_cut_over(tuple(step_flops(case.spec)), devices)


def _listed(cuts: Sequence[int]) -> str:
    return ", ".join(map(str, cuts))


def _edges(layout: Layout) -> str:
    """Where the stages behind the first begin."""
    return _listed([own[0] for own in layout.stage_units[1:]])
