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
from collections.abc import Callable, Iterator
from typing import Any, get_args

from parallel_core.limits import MAX_MICRO_BATCHES, MAX_STAGES
from parallel_core.schedule.ir import COMPUTE, Kind, Op, Program, Schedule
from parallel_core.schedule.traits import CUSTOM, Sync

_THEIRS = {Kind.F: "F", Kind.BW: "B", Kind.B: "I", Kind.W: "W"}
_OURS = {text: kind for kind, text in _THEIRS.items()}
_CELL = re.compile(r"(\d{1,6})([FBIW])(\d{1,6})")
_OWN_CELL = re.compile(r"(?<!\w)(\d+)(BW|B)(\d+)(?!\w)")
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


def from_csv(text: str) -> Schedule:
    """The compute-only schedule of one replica in torch's format. Raises TableError; `check` validates the rest."""
    try:  # any system's line endings, and a byte order mark as some editors write it
        lines = io.StringIO(text.removeprefix("\ufeff"), newline=None)
        rows = [row for row in csv.reader(lines) if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise TableError(f"the program is no CSV: {error}.") from error
    if not rows:
        raise TableError("the program is empty; write one row for each pipeline rank, such as 0F0,0B0.")
    programs = tuple(
        tuple(_parse(cell.strip(), q, i) for i, cell in enumerate(row) if cell.strip()) for q, row in enumerate(rows)
    )
    return _schedule(CUSTOM, programs)


def _schedule(name: str, programs: tuple[Program, ...], sync: Sync = "flush", **fields: Any) -> Schedule:
    """The schedule of these programs: its stages, placement and micro-batches are those of their compute operations."""
    homes: dict[int, dict[int, int]] = {}
    micro_batches = 0
    for q, op in _parts(programs):
        if op.kind not in COMPUTE:
            continue
        _bounded(op, q)
        home = homes.setdefault(op.stage, {}).setdefault(op.replica, q)
        if home != q:
            raise TableError(f"stage {op.stage} is given to ranks {home} and {q}; leave it in one row.")
        micro_batches = max(micro_batches, op.micro_batch + 1)
    if not homes:
        raise TableError("the program computes nothing; write a forward and a backward of each micro-batch.")
    missing = next((stage for stage in range(len(homes)) if stage not in homes), None)
    if missing is not None:
        raise TableError(f"stage {missing} is missing; stages are numbered 0 to {len(homes) - 1} without a gap.")
    placement = tuple(_replicas(stage, homes[stage]) for stage in range(len(homes)))
    return Schedule(name, len(homes), micro_batches, placement, programs, sync, **fields)


def _replicas(stage: int, ranks: dict[int, int]) -> tuple[int, ...]:
    """The ranks of a stage's replicas, in replica order."""
    missing = next((replica for replica in range(len(ranks)) if replica not in ranks), None)
    if missing is not None:
        raise TableError(f"stage {stage} has no replica {missing}; its replicas are numbered from 0 without a gap.")
    return tuple(ranks[replica] for replica in range(len(ranks)))


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


_BLANKS = "\ufeff \t\r\n"
"""What may precede JSON; some editors begin a file with a byte order mark."""


def is_json(text: str) -> bool:
    """Whether a program is JSON: no CSV begins so."""
    return text.lstrip(_BLANKS)[:1] in ("{", "[")


def from_json(text: str) -> Schedule:
    """The inverse of `to_json`; a list stands for the programs alone. Raises TableError.

    `stages`, `micro_batches` and `placement` follow from the operations and are not read.
    """
    try:
        data = json.loads(text.lstrip(_BLANKS))
    except RecursionError as error:
        raise TableError("the program's lists are nested too deeply; write a list for each pipeline rank.") from error
    except ValueError as error:
        raise TableError(f"the program is no JSON: {error}.") from error
    data = {"programs": data} if isinstance(data, list) else data
    rows = data.get("programs") if isinstance(data, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows) or not any(rows):
        raise TableError('"programs" holds no operations; write a list for each pipeline rank, such as [["F", 0, 0]].')
    programs = tuple(tuple(_op(cell, q, i) for i, cell in enumerate(row)) for q, row in enumerate(rows))
    return _schedule(programs=programs, **_header(data))


_FORMS: dict[str, tuple[Any, Callable[[Any], bool], str]] = {
    "name": (CUSTOM, lambda value: isinstance(value, str), "a text"),
    "sync": ("flush", lambda value: value in get_args(Sync), f"one of {', '.join(get_args(Sync))}"),
    "vertical": (False, lambda value: isinstance(value, bool), "true or false"),
    "per_step": (0, lambda value: _whole(value) and value >= 0, "a whole number from 0"),
}
"""Field of the JSON beside the operations -> its default, whether a value is valid, and in words which are."""


def _header(data: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, (default, valid, form) in _FORMS.items():
        found[name] = data.get(name, default)
        if not valid(found[name]):
            raise TableError(f'"{name}" is {_shown(found[name])}; write {form}.')
    return found


def _op(cell: Any, rank: int, column: int) -> Op:
    """The inverse of `_cells`; what follows the micro-batch may be left out."""
    if isinstance(cell, list) and 3 <= len(cell) <= len(_FIELDS) + 1 and cell[0] in list(Kind.__members__):
        numbers, partner = cell[1 : len(_FIELDS)], cell[len(_FIELDS)] if len(cell) > len(_FIELDS) else None
        if all(map(_whole, numbers)) and _fits(Kind[cell[0]], numbers, partner):
            given: dict[str, Any] = dict(zip(_FIELDS[1:], numbers, strict=False))
            return Op(Kind[cell[0]], **given, partner=None if partner is None else (partner[0], partner[1]))
    raise TableError(
        f"cell {column + 1} of rank {rank}'s row: {_shown(cell)} is no operation; write kind (F, BW, B or W), "
        'stage and micro-batch, such as ["F", 2, 0].'
    )


def _fits(kind: Kind, numbers: list[int], partner: Any) -> bool:
    """Whether these can be the numbers and the partner of an operation of this kind."""
    least = 0 if kind in COMPUTE else -1
    if numbers[0] < 0 or numbers[1] < least or any(number < 0 for number in numbers[2:4]):
        return False
    if kind is not Kind.PAIR:
        return partner is None
    return isinstance(partner, list) and len(partner) == 2 and all(_whole(n) and n >= 0 for n in partner)


def _shown(value: Any) -> str:
    try:
        return json.dumps(value)[:40]
    except RecursionError:  # nests almost as deep as can be read
        return "what nests too deep"


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _parts(programs: tuple[Program, ...]) -> Iterator[tuple[int, Op]]:
    return ((q, part) for q, program in enumerate(programs) for op in program for part in op.parts())


def _spell(op: Op, replicas: int) -> str:
    """One cell, with the micro-batch numbered within its replica."""
    if op.kind is Kind.PAIR:
        return f"({';'.join(_spell(part, replicas) for part in op.parts())})OVERLAP_F_B"
    return f"{op.stage}{_THEIRS[op.kind]}{op.micro_batch // replicas}"


def in_csv_spelling(text: str) -> str:
    """A text that has operations as `str(Op)` writes them, with those of the CSV: `0B1` for `0BW1`, `0I1` for `0B1`."""
    return _OWN_CELL.sub(lambda cell: f"{cell[1]}{_THEIRS[Kind[cell[2]]]}{cell[3]}", text)


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
