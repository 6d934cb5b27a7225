"""Operations in words; a schedule as a grid of them, for people and errors (`simulate.picture` shows it over time)."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from parallel_core.schedule.ir import Kind, Program, Schedule

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
    Kind.UNSHARD_FLIGHT: "parameters of a layer gathered behind computation",
    Kind.BUCKET_WAIT: "wait for a gradient bucket",
    Kind.BUCKET_FLIGHT: "gradient bucket behind computation",
    Kind.STATISTICS: "statistics of a batch norm gathered",
    Kind.NORM: "flush: gradient norm over all ranks",
    Kind.BUCKET: "gradient bucket in flight",
    Kind.DATA: "read data",
    Kind.SETUP: "set up",
    Kind.STEP: "step",
}
_SPELT = re.compile(r"(\d+)([A-Z_]+)(\d*)( of .*)?")


def spoken(op: str) -> str:
    """An operation as `str(Op)` writes it, in words: `1F3` is `forward 3 of stage 1`, whatever follows it.

    Other text stays unchanged.
    """
    found = _SPELT.fullmatch(op)
    if found is None or parsed(op) is None:
        return op
    which = f" {found[3]}" if found[3] else ""
    return f"{WORDS.get(Kind[found[2]], found[2])}{which} of stage {found[1]}{found[4] or ''}"


_UNDER_WAY = {
    "send": "sending",
    "receive": "receiving",
    "recompute": "recomputing",
    "keep": "keeping",
    "let": "letting",
    "offload": "offloading",
    "reload": "reloading",
    "free": "freeing",
}
"""For the verb that words of an operation begin with: what a rank that is in it is doing."""


def under_way(op: str) -> str:
    """`spoken`, as it stands after `in`: `receiving gradient 0 of stage 1`, `forward 3 of stage 1`."""
    said = spoken(op)
    verb, space, rest = said.partition(" ")
    return f"{_UNDER_WAY.get(verb, verb)}{space}{rest}" if said != op else op


def parsed(op: str) -> tuple[int, Kind] | None:
    """Stage and kind of an operation as `str(Op)` writes it, whatever follows; None of other text, and of a PAIR."""
    found = _SPELT.fullmatch(op)
    return (int(found[1]), Kind[found[2]]) if found and found[2] in Kind.__members__ else None


def grid(schedule: Schedule, mark: tuple[int, int] | None = None) -> str:
    """One line for each pipeline rank, its operations side by side in program order.

    The `mark` (pipeline rank, position) is shown as `>2F0<`, or `>missing<` after the end of that program; columns far
    from it are cut away, and the first line says which remain.
    """
    width = max((len(program) for program in schedule.programs), default=0)
    first, last = 0, width
    if mark is not None:
        at = mark[1]
        first, last = max(0, at - _SHOWN_AROUND_MARK), max(min(width, at + _SHOWN_AROUND_MARK + 1), at + 1)
    cells = [
        [_cell(program, i, marked=(q, i) == mark) for i in range(first, last)]
        for q, program in enumerate(schedule.programs)
    ]
    head = f"{schedule.name}: operations {first} to {max(first, min(last, width) - 1)} of {width}"
    return "\n".join([head, *align(cells)])


def around(program: Program, marks: Collection[int]) -> str:
    """The operations of a program near the positions `marks`, which are shown as `>2F0<`; the number of the first is in
    front of each stretch."""
    shown = {i for at in marks for i in range(at - _SHOWN_AROUND_MARK, at + _SHOWN_AROUND_MARK + 1)}
    words: list[str] = []
    for i in sorted(shown & set(range(len(program)))):
        if i - 1 not in shown or not words:
            words += [*(["..."] if words else []), f"{i}:"]
        words.append(_cell(program, i, marked=i in marks))
    return " ".join(words)


def _cell(program: Program, i: int, *, marked: bool) -> str:
    text = str(program[i]) if i < len(program) else ""
    return f">{text or 'missing'}<" if marked else text


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with aligned columns, each with its pipeline rank in front."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    label = len(f"rank {len(rows) - 1}")
    return [
        f"{f'rank {q}':>{label}} | "
        + " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for q, row in enumerate(rows)
    ]
