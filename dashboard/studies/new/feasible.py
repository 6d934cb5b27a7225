"""Which variants of a plan the fleet can run: the others would wait for ever, or run out of memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from dashboard.fleet.selectors import FleetSnapshot
from dashboard.placement.hosts import Request
from dashboard.runs.run_files import Files
from dashboard.runs.waiting.fleet_checks import FleetCheck, fleet_check, with_need
from dashboard.runs.weights import weights_errors
from dashboard.studies.new.saving import warnings
from dashboard.studies.new.variants import Plan, Skipped, Variant
from parallel_core.analysis.quantities import bytes_beside
from parallel_core.plan.generation import worst_place
from parallel_core.plan.memory import counted, fullest
from parallel_core.plan.room import Room, room_of
from parallel_core.spec import RunSpec
from workers.contract import task_of

PREVIEWED_PROGRAMS = 128 * 1024
"""Characters of own schedules, once for each variant, whose operations a preview walks through, for memory as for
times. Memory alone takes some 4 us a character; that of a schedule by name mostly has a closed form."""


class Allowance:
    """The characters of own schedules that may still be walked through."""

    def __init__(self, characters: float = PREVIEWED_PROGRAMS) -> None:
        self._left = characters

    def takes(self, spec: RunSpec) -> bool:
        """Whether the operations of `spec` may be walked through; those of a schedule by name always may. The last one
        may go beyond what is left."""
        size = len(spec.parallel.program or "")
        if size and self._left <= 0:
            return False
        self._left -= size
        return True


def feasible(plan: Plan, fleet: FleetSnapshot | None = None, programs: float = math.inf, repeats: int = 1) -> Plan:
    """The plan with the variants that fit on reporting workers; the others become `skipped`, with the reason.

    `fleet`: a snapshot to use instead of a new one. `programs`: characters of own schedules for the memory of which
    there is time; variants beyond are kept, and counted in `unchecked`. Those that take too long themselves are in
    `uncounted`. `repeats`: how often each will run.
    """
    fleet = fleet or FleetSnapshot.now()
    files, allowance, unchecked, uncounted = Files.of(fleet), Allowance(programs), 0, 0
    kept: list[Variant] = []
    skipped: list[Skipped] = []
    checks: dict[str, FleetCheck] = {}
    for variant in plan.variants:
        check = fleet_check(variant.spec, fleet, begins=variant.begins, task=task_of(variant.task), files=files)
        why = next(iter(check.errors.values()), "") or _of_other_weights(variant, fleet)
        room = None if why else room_of(check.offered.room, variant.spec.trace.memory_cap)
        if room is not None and not counted(variant.spec):
            uncounted += 1
        elif room is not None and not allowance.takes(variant.spec):
            unchecked += 1
        elif room is not None and not (why := _too_large(variant, room)) and not variant.task:
            check = with_need(variant.spec, check)
        if why:
            skipped.append(Skipped(variant.name, why))
        else:
            kept.append(variant)
            checks[variant.name] = check
    asks = {name: check.asks for name, check in checks.items()}
    said = _waits(checks), warnings(kept, asks, fleet, repeats)
    return Plan(tuple(kept), (*plan.skipped, *skipped), plan.cut, unchecked, uncounted, *said, asks)


def _waits(checks: Mapping[str, FleetCheck]) -> dict[str, str]:
    """What the variants wait for, by name. A study may have thousands alike, so each request is looked at once, and
    none that only asks for less memory than one that waits for nothing."""
    said: dict[Request, str] = {}
    starts: set[Request] = set()
    for check in sorted(checks.values(), key=lambda check: -check.asks.memory):
        shape = replace(check.asks, memory=0)
        if check.asks not in said:
            said[check.asks] = "" if shape in starts else check.awaits
        if not said[check.asks]:
            starts.add(shape)
    return {name: said[check.asks] for name, check in checks.items() if said[check.asks]}


def previewed(plan: Plan, fleet: FleetSnapshot, repeats: int) -> Plan:
    """`feasible` while somebody types: own schedules take long, so only the first ones are checked for memory."""
    return feasible(plan, fleet, PREVIEWED_PROGRAMS, repeats)


def _of_other_weights(variant: Variant, fleet: FleetSnapshot) -> str:
    """Why the variant cannot begin from the weights that it names; '' if it can, or names none."""
    return "" if variant.begins else " ".join(weights_errors(variant.spec, fleet).values())


def _too_large(variant: Variant, room: Room) -> str:
    """Why the worst rank does not fit; '' if it does."""
    spec, task = variant.spec, variant.task
    worst = worst_place(spec, task) if task else fullest(spec)
    if worst.total <= room.usable:
        return ""
    needs, has = bytes_beside(worst.total, room.usable), bytes_beside(room.usable, worst.total)
    return f"needs {needs} on rank {worst.rank}; there is room for {has}."
