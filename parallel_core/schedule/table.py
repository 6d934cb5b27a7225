"""Schedules as files: the CSV of torch.distributed.pipelining (compute only), and JSON (everything).

In torch's CSV a row is a pipeline rank and a cell an operation: stage, kind, micro-batch, such as `2F0`; an empty cell
is idle. Its `B` is our BW (the whole backward), its `I` our B (input gradient), `W` is W, and `(0F5;3B1)OVERLAP_F_B` is
a PAIR.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from typing import Any

from parallel_core.limits import MAX_MICRO_BATCHES, MAX_STAGES
from parallel_core.schedule.ir import COMPUTE, Kind, Op, Schedule

_THEIRS = {Kind.F: "F", Kind.BW: "B", Kind.B: "I", Kind.W: "W"}
_OURS = {text: kind for kind, text in _THEIRS.items()}
_CELL = re.compile(r"(\d{1,6})([FBIW])(\d{1,6})")
_PAIR = re.compile(r"\((\d{1,6})F(\d{1,6});(\d{1,6})B(\d{1,6})\)OVERLAP_F_B")
_FIELDS = ("kind", "stage", "micro_batch", "replica", "version", "peer")


class TableError(ValueError):
    """A file that is not a schedule: where, what is wrong, and what would be right."""


def to_csv(schedule: Schedule) -> str:
    """The compute operations of the first replica, one row a rank, in torch's `compute_only` format.

    Raises TableError where stages have different numbers of replicas: their first replicas share no micro-batches.
    """
    if len({len(ranks) for ranks in schedule.placement}) > 1:
        raise TableError("stages with their own numbers of replicas have no such table; use JSON.")
    first = sorted({ranks[0] for ranks in schedule.placement})
    rows = ([_spell(op, schedule.replicas) for op in schedule.programs[q] if op.kind in COMPUTE] for q in first)
    return "".join(",".join(row) + "\n" for row in rows)


def from_csv(text: str, name: str = "custom") -> Schedule:
    """The compute-only schedule of one replica in torch's format. Raises TableError; `check` validates the rest."""
    try:  # any system's line endings
        rows = [row for row in csv.reader(io.StringIO(text, newline=None)) if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise TableError(f"the program is no CSV: {error}.") from error
    if not rows:
        raise TableError("the program is empty; write one row for each pipeline rank, such as 0F0,0B0.")
    programs = tuple(
        tuple(_parse(cell.strip(), q, i) for i, cell in enumerate(row) if cell.strip()) for q, row in enumerate(rows)
    )
    homes: dict[int, int] = {}
    micro_batches = 0
    for q, op in _parts(programs):
        _bounded(op, q)
        if homes.setdefault(op.stage, q) != q:
            raise TableError(f"stage {op.stage} is given to ranks {homes[op.stage]} and {q}; leave it in one row.")
        micro_batches = max(micro_batches, op.micro_batch + 1)
    missing = next((stage for stage in range(len(homes)) if stage not in homes), None)
    if missing is not None:
        raise TableError(f"stage {missing} is missing; stages are numbered 0 to {len(homes) - 1} without a gap.")
    placement = tuple((homes[stage],) for stage in range(len(homes)))
    return Schedule(name, len(homes), micro_batches, placement, programs)


def _bounded(op: Op, rank: int) -> None:
    """Raises TableError for numbers that are too high before validation, whose time grows with them."""
    for number, most, what in ((op.stage, MAX_STAGES, "stages"), (op.micro_batch, MAX_MICRO_BATCHES, "micro-batches")):
        if number >= most:
            raise TableError(
                f"{op} in rank {rank}'s row is numbered too high: {what} are numbered from 0 to {most - 1} at most."
            )


def to_json(schedule: Schedule) -> str:
    """The whole schedule: its fields, and the operations of each rank."""
    return json.dumps(
        {
            "name": schedule.name,
            "stages": schedule.stages,
            "micro_batches": schedule.micro_batches,
            "placement": schedule.placement,
            "sync": schedule.sync,
            "vertical": schedule.vertical,
            "per_step": schedule.per_step,
            "fields": [*_FIELDS, "partner"],
            "programs": [[_cells(op) for op in program] for program in schedule.programs],
        }
    )


def _parts(programs: tuple[tuple[Op, ...], ...]) -> Iterator[tuple[int, Op]]:
    return ((q, part) for q, program in enumerate(programs) for op in program for part in op.parts())


def _spell(op: Op, replicas: int) -> str:
    """One cell, with the micro-batch numbered within its replica."""
    if op.kind is Kind.PAIR:
        return f"({';'.join(_spell(part, replicas) for part in op.parts())})OVERLAP_F_B"
    return f"{op.stage}{_THEIRS[op.kind]}{op.micro_batch // replicas}"


def _parse(cell: str, rank: int, column: int) -> Op:
    if match := _CELL.fullmatch(cell):
        return Op(_OURS[match[2]], int(match[1]), int(match[3]))
    if match := _PAIR.fullmatch(cell):
        return Op(Kind.PAIR, int(match[1]), int(match[2]), partner=(int(match[3]), int(match[4])))
    raise TableError(
        f"cell {column + 1} of rank {rank}'s row: {cell[:40]!r} is no operation; write stage, kind (F, B, I or W) and "
        "micro-batch, such as 2F0. Communication is added automatically."
    )


def _cells(op: Op) -> list[Any]:
    return [op.kind.name, *(getattr(op, name) for name in _FIELDS[1:]), op.partner]
