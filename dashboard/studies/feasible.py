"""Which variants of a plan the fleet can run at all: the others would wait for ever, or end out of memory."""

from __future__ import annotations

from dashboard.runs.submission import Capacity, capacity, fleet_errors
from dashboard.studies.variants import Plan, Skipped, Variant
from parallel_core.analysis.quantities import bytes_text
from parallel_core.plan.memory import worst_stage
from parallel_core.spec import RunSpec


def feasible(plan: Plan) -> Plan:
    """The plan without what does not fit on any worker that reports; each one left out says why."""
    offered = {kind: capacity(kind) for kind in {v.spec.train.device for v in plan.variants}}
    kept: list[Variant] = []
    skipped: list[Skipped] = []
    for variant in plan.variants:
        why = _obstacle(variant.spec, offered[variant.spec.train.device])
        if why:
            skipped.append(Skipped(variant.name, why))
        else:
            kept.append(variant)
    return Plan(tuple(kept), (*plan.skipped, *skipped))


def _obstacle(spec: RunSpec, offered: Capacity) -> str:
    """Too few devices on one host, or too little memory on a device; '' where neither."""
    if wrong := fleet_errors(spec, offered):
        return next(iter(wrong.values()))
    limit = min((size for size in (offered.memory, spec.trace.memory_cap) if size), default=0)
    worst = worst_stage(spec) if limit else None
    if worst is None or worst.total <= limit:
        return ""
    return f"needs {bytes_text(worst.total)} on rank {worst.rank}; there is room for {bytes_text(limit)}."
