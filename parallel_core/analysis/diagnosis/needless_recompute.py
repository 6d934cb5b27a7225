"""Activations are recomputed although there is memory to keep them.

Threshold: without recomputation the worst rank is predicted to take less than 70 % of its limit, and 5 % of the step
would be saved. Predictions are within 10 % of measurements, and fragmentation needs the rest.
"""

from __future__ import annotations

from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import bytes_text, ns_text, percent_text
from parallel_core.plan.memory import counted, worst_stage
from parallel_core.simulate.replay import Change

ROOM, MATTERS = 0.70, 0.05


def check(case: Case) -> Finding | None:
    split = case.spec.parallel
    if split.recompute == "none" or case.limit is None or case.typical is None:
        return None
    kept = {"recompute": "none", "recompute_layers": None}
    plain = case.spec.model_copy(update={"parallel": split.model_copy(update=kept)})
    if not counted(plain):
        return None
    needs = worst_stage(plain).total
    layers = "" if split.recompute_layers is None else " and leave parallel.recompute_layers empty"
    saved = case.saved(Change(no_recompute=True))
    if needs > ROOM * case.limit or saved < MATTERS * case.typical.step:
        return None
    return Finding(
        "needless_recompute",
        f"{percent_text(saved / case.typical.step)} of the step is recomputation that memory does not ask for.",
        f"Without it, {ns_text(saved)} faster, the worst rank takes {bytes_text(needs)} of {bytes_text(case.limit)}.",
        f"Set parallel.recompute to none{layers}.",
        effect_ns=saved,
        tab="memory",
    )
