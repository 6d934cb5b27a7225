"""Operations in words; a schedule as a grid of them, for people and errors (`simulate.picture` shows it over time)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from parallel_core.schedule.ir import Kind, Op, Schedule

_SHOWN_AROUND_MARK = 6
WORDS = {
    Kind.F: "forward",
    Kind.R: "recompute",
    Kind.B: "input gradient",
    Kind.W: "weight gradient",
    Kind.BW: "backward",
    Kind.SEND_ACT: "send activation",
    Kind.RECV_ACT: "receive activation",
    Kind.SEND_GRAD: "send gradient",
    Kind.RECV_GRAD: "receive gradient",
    Kind.ALLREDUCE: "gradient all-reduce",
    Kind.REDUCE_SCATTER: "gradient reduce-scatter",
    Kind.GATHER: "parameter gather",
    Kind.STASH: "keep a weight version",
    Kind.DROP: "let a weight version go",
    Kind.OPT_STEP: "optimizer",
    Kind.OFFLOAD: "offload",
    Kind.RELOAD: "reload",
    Kind.FREE: "free",
    Kind.PAIR: "forward together with a backward",
    Kind.TP_COLLECTIVE: "tensor-parallel collective",
    Kind.TP_FLIGHT: "tensor-parallel collective in flight",
    Kind.UNSHARD: "parameters of a layer gathered",
    Kind.STATISTICS: "statistics of a batch norm gathered",
    Kind.NORM: "flush: gradient norm over all ranks",
    Kind.BUCKET: "gradient bucket in flight",
    Kind.DATA: "read data",
    Kind.SETUP: "set up",
    Kind.STEP: "step",
}
_SPELT = re.compile(r"(\d+)([A-Z_]+)(\d*)")


def spoken(op: str) -> str:
    """An operation as `str(Op)` writes it, in words: `1F3` is `forward 3 of stage 1`; other text stays unchanged."""
    found = _SPELT.fullmatch(op)
    if found is None or found[2] not in Kind.__members__:
        return op
    which = f" {found[3]}" if found[3] else ""
    return f"{WORDS.get(Kind[found[2]], found[2])}{which} of stage {found[1]}"


def grid(schedule: Schedule, *marks: tuple[int, int]) -> str:
    """One line for each pipeline rank, its operations side by side in program order.

    A mark (pipeline rank, position) is shown as `>2F0<`, or `>missing<` after the end of that program; columns far from
    every mark are cut away, and the first line says which remain.
    """
    width = max((len(program) for program in schedule.programs), default=0)
    first, last = 0, width
    if marks:
        columns = [i for _, i in marks]
        first, last = max(0, min(columns) - _SHOWN_AROUND_MARK), min(width, max(columns) + _SHOWN_AROUND_MARK + 1)
        last = max(last, max(columns) + 1)
    cells = [[_cell(program, q, i, marks) for i in range(first, last)] for q, program in enumerate(schedule.programs)]
    head = f"{schedule.name}: operations {first} to {max(first, min(last, width) - 1)} of {width}"
    return "\n".join([head, *align(cells)])


def _cell(program: Sequence[Op], rank: int, i: int, marks: Sequence[tuple[int, int]]) -> str:
    text = str(program[i]) if i < len(program) else ""
    if (rank, i) in marks:
        return f">{text or 'missing'}<"
    return text


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with aligned columns, each with its pipeline rank in front."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    label = len(f"rank {len(rows) - 1}")
    return [
        f"{f'rank {q}':>{label}} | "
        + " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for q, row in enumerate(rows)
    ]
