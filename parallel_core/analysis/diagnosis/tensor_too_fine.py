"""Finds tensor parallelism so fine, or over so slow a link, that its collectives use up the gain.

Threshold: 35 % of the step in tensor-parallel collectives, without waits for a slower rank. With tp = 2 at most half of
the layers' compute can be saved, so from about a third of the step on, a single rank is as fast.
"""

from __future__ import annotations

from parallel_core.analysis.diagnosis.case import Case, Finding
from parallel_core.analysis.quantities import listed_text, ns_text, percent_text
from parallel_core.schedule.ir import Kind

MOST = 0.35


def check(case: Case) -> Finding | None:
    if case.layout.tp == 1 or not case.traced:
        return None
    groups = case.layout.tensor_groups()
    took, group = max((min(case.spent(rank, Kind.TP_COLLECTIVE) for rank in group), group) for group in groups)
    if took < MOST * case.step_ns:
        return None
    field = "parallel.tp" if case.spec.parallel.widths is None else "parallel.widths"
    share, of_step = percent_text(took / case.step_ns), f"{ns_text(took)} of {ns_text(case.step_ns)}"
    if hosts := case.apart(*group):
        return Finding(
            "tensor_too_fine",
            f"{share} of the step is tensor-parallel communication between hosts.",
            f"{of_step}; the tensor group of rank {group[0]} is on {listed_text(hosts)}.",
            "Keep each tensor group on one host: every layer waits for it. Between hosts split by data or layers.",
            effect_ns=took,
            tab="layout",
        )
    return Finding(
        "tensor_too_fine",
        f"{share} of the step is tensor-parallel communication.",
        f"{of_step} on {len(group)} ranks with hidden size {case.spec.model.hidden}.",
        _change(case, field),
        effect_ns=took,
        tab="whatif",
    )


def _change(case: Case, field: str) -> str:
    """A split by columns gathers the output of every layer, pairs of layers sum once."""
    other = f"lower {field}, or split by data or layers instead."
    if case.spec.parallel.cut == "columns":
        return f"Set parallel.tensor_split to pairs, which communicate about half as often; or {other}"
    return f"Keep tensor groups on the fastest link, {other}"
