"""Which variants of a plan the fleet can run: the others would wait for ever, or run out of memory."""

from __future__ import annotations

from dashboard.fleet.selectors import FleetSnapshot
from dashboard.runs.spreading import Files, asked
from dashboard.runs.submission import capacity, fleet_errors
from dashboard.studies.variants import Plan, Skipped, Variant
from parallel_core.analysis.quantities import bytes_text
from parallel_core.plan.memory import worst_stage
from parallel_core.plan.room import room_of
from parallel_core.spec import RunSpec


def feasible(plan: Plan, fleet: FleetSnapshot | None = None) -> Plan:
    """The plan with the variants that fit on reporting workers; the others become `skipped`, with the reason.

    `fleet`: a snapshot to use instead of a new one.
    """
    fleet = fleet or FleetSnapshot.now()
    files = Files.of(fleet)
    kept: list[Variant] = []
    skipped: list[Skipped] = []
    for variant in plan.variants:
        why = _obstacle(variant.spec, fleet, files)
        if why:
            skipped.append(Skipped(variant.name, why))
        else:
            kept.append(variant)
    return Plan(tuple(kept), (*plan.skipped, *skipped), plan.cut)


def _obstacle(spec: RunSpec, fleet: FleetSnapshot, files: Files) -> str:
    """Too few devices where the run may be placed, or too little memory on a device; '' if neither."""
    alone, asks = asked(spec, files)
    offered = capacity(asks.kind, asks.needs, asks.over, fleet)
    if wrong := fleet_errors(spec, offered, alone):
        return next(iter(wrong.values()))
    room = room_of(offered.room, spec.trace.memory_cap)
    worst = worst_stage(spec) if room else None
    if room is None or worst is None or worst.total <= room.usable:
        return ""
    return f"needs {bytes_text(worst.total)} on rank {worst.rank}; there is room for {bytes_text(room.usable)}."
