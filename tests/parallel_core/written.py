"""Reads a schedule back from its JSON file, so that tests can check that nothing is lost."""

from __future__ import annotations

import json
from typing import Any

from parallel_core.schedule.ir import Kind, Op, Schedule


def from_json(text: str) -> Schedule:
    """The inverse of `schedule.table.to_json`."""
    data = json.loads(text)
    return Schedule(
        data["name"],
        data["stages"],
        data["micro_batches"],
        tuple(map(tuple, data["placement"])),
        tuple(tuple(map(_op, program)) for program in data["programs"]),
        data["sync"],
        data["vertical"],
        data["per_step"],
    )


def _op(cells: list[Any]) -> Op:
    kind, *numbers, partner = cells
    return Op(Kind[kind], *numbers, partner and tuple(partner))
