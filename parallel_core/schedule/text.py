"""Schedules as text: a grid of operations, a picture in time slots, and CSV."""

from __future__ import annotations

from collections.abc import Sequence

from parallel_core.schedule.ir import COMPUTE, Kind, Op, Schedule

_SLOTS = {Kind.F: 1, Kind.R: 1, Kind.B: 1, Kind.W: 1, Kind.BW: 2, Kind.PAIR: 3}
_SHOWN_AROUND_MARK = 6


def grid(schedule: Schedule, *marks: tuple[int, int]) -> str:
    """One line for each pipeline rank, its operations side by side in program order.

    A mark (pipeline rank, position) is shown as `>2F0<`, or `>missing<` behind the end of that program; columns far
    from every mark are cut away, and the first line says which remain.
    """
    width = max((len(program) for program in schedule.programs), default=0)
    first, last = 0, width
    if marks:
        columns = [i for _, i in marks]
        first, last = max(0, min(columns) - _SHOWN_AROUND_MARK), min(width, max(columns) + _SHOWN_AROUND_MARK + 1)
        last = max(last, max(columns) + 1)
    cells = [[_cell(program, q, i, marks) for i in range(first, last)] for q, program in enumerate(schedule.programs)]
    head = f"{schedule.name}: operations {first} to {max(first, min(last, width) - 1)} of {width}"
    return "\n".join([head, *_align(cells)])


def picture(schedule: Schedule) -> str:
    """The compute operations in time slots: forward takes one, backward two, communication none; `.` is idle.

    Each slot shows kind and micro-batch (`F0`, `B0`); raises ValueError where the programs never finish.
    """
    rows = []
    for program, starts in zip(schedule.programs, slots(schedule), strict=True):
        row: list[str] = []
        for op, start in zip((op for op in program if op.kind in COMPUTE), starts, strict=True):
            row += ["."] * (start - len(row)) + [f"{op.kind.name[0]}{op.micro_batch}"] * _SLOTS[op.kind]
        rows.append(row)
    longest = max(map(len, rows))
    return "\n".join(_align([row + ["."] * (longest - len(row)) for row in rows]))


def to_csv(schedule: Schedule) -> str:
    """One row for each pipeline rank, one cell for each operation (the form of torch.distributed.pipelining)."""
    return "".join(",".join(map(str, program)) + "\n" for program in schedule.programs)


def slots(schedule: Schedule) -> list[list[int]]:
    """Earliest start slot of each compute operation, rank by rank, in program order.

    A forward waits for the stage before it, a backward for the stage behind it. Raises ValueError on a deadlock.
    """
    programs = [[op for op in program if op.kind in COMPUTE] for program in schedule.programs]
    starts: list[list[int]] = [[] for _ in programs]
    done: dict[tuple[bool, int, int], int] = {}
    moved = True
    while moved:
        moved = False
        for program, begun in zip(programs, starts, strict=True):
            free = begun[-1] + _SLOTS[program[len(begun) - 1].kind] if begun else 0
            while len(begun) < len(program) and (ready := _ready(program[len(begun)], done, schedule.stages)) >= 0:
                op = program[len(begun)]
                begun.append(max(free, ready))
                free = begun[-1] + _SLOTS[op.kind]
                done[op.kind is Kind.F, op.stage, op.micro_batch] = free
                moved = True
    if any(len(begun) < len(program) for begun, program in zip(starts, programs, strict=True)):
        raise ValueError("the programs wait for each other in a circle")
    return starts


def _ready(op: Op, done: dict[tuple[bool, int, int], int], stages: int) -> int:
    """Slot from which the inputs of `op` are there; -1 where one was not made yet."""
    forward = op.kind is Kind.F
    neighbour = op.stage + (-1 if forward else 1)
    if op.kind in (Kind.R, Kind.W) or not 0 <= neighbour < stages:
        return 0
    return done.get((forward, neighbour, op.micro_batch), -1)


def _cell(program: Sequence[Op], rank: int, i: int, marks: Sequence[tuple[int, int]]) -> str:
    text = str(program[i]) if i < len(program) else ""
    if (rank, i) in marks:
        return f">{text or 'missing'}<"
    return text


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with aligned columns, each led by its pipeline rank."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    label = len(f"rank {len(rows) - 1}")
    return [
        f"{f'rank {q}':>{label}} | "
        + " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for q, row in enumerate(rows)
    ]
