"""Predicted memory of text generation on each rank: the panel next to its form, and the tile with what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.runs import selectors
from dashboard.runs.form.panel import SHOWN_STAGES, Panel, limit_text, row_of, shown_stages
from dashboard.runs.models import Run
from dashboard.runs.waiting.fleet_checks import FleetCheck
from parallel_core.analysis.quantities import bytes_beside, bytes_text, percent_text, signed_percent_text
from parallel_core.plan.generation import by_place, worst_place
from parallel_core.plan.peak import RankMemory
from parallel_core.plan.room import Room
from parallel_core.spec import RunSpec

NAMES = {"params": "weights", "activations": "keys and values", "buffers": "layer at work"}


def panel(spec: RunSpec, request: Mapping[str, Any], check: FleetCheck) -> Panel:
    """The prediction compared with the room on a device, if that is known, and what the fleet says otherwise."""
    stages, room = by_place(spec, request), check.offered.room
    worst, limit = max(stages, key=lambda stage: stage.total), room.usable if room else 0
    full = max(limit, worst.total)
    return Panel(
        memory=_sentence(worst, room, request),
        waits=check.waits,
        fits=worst.total <= limit if limit else None,
        rows=[row_of(spec, stage, full, limit, NAMES) for stage in shown_stages(stages)],
        hidden=max(0, len(stages) - SHOWN_STAGES),
        limit=limit_text(limit, stages),
    )


def _sentence(worst: RankMemory, room: Room | None, request: Mapping[str, Any]) -> str:
    category, share = worst.largest()
    needs = bytes_beside(worst.total, room.usable if room else 0)
    most = f"Needs {needs} on rank {worst.rank}; {NAMES[category]} are {percent_text(share)}"
    if room is None:
        return f"{most}. The device's memory is not known."
    if worst.total <= room.usable:
        return f"{most}. A device has {room.text}."
    return f"{most}. A device has {room.text}: use {_less(request)}."


def _less(request: Mapping[str, Any]) -> str:
    """What makes the fullest rank hold less."""
    return f"more tensor ranks or stages, or fewer {'texts' if request['samples'] > 1 else 'tokens'}"


def fix(run: Run) -> str:
    """What would most likely help a run that ran out of memory."""
    worst = worst_place(RunSpec.stored(run.spec), run.task)
    category, share = worst.largest()
    needs = f"rank {worst.rank} is predicted to need {bytes_text(worst.total)}"
    return f"Generate again with {_less(run.task)}: {needs}; {NAMES[category]} are {percent_text(share)}."


def figure(run: Run) -> tuple[str, str, str]:
    """(title, value, note): the memory of the fullest rank, and how far off the prediction was."""
    predicted = worst_place(RunSpec.stored(run.spec), run.task).total
    worst = selectors.worst_memory(run)
    if worst is None or not worst.peak_total:
        return "Memory of a rank", bytes_text(predicted), "predicted"
    said = f"measured; {bytes_text(predicted)} predicted, {signed_percent_text(predicted / worst.peak_total - 1)} off"
    return "Memory of a rank", bytes_text(worst.peak_total), said
