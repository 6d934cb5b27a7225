"""Aligns the operations of two ranks: the same, only on one of them, or at another position in the order.

An operation is identified by its kind, the number of its stage among those of its rank, and its micro-batch counted
within its replica. So two replicas do the same, and so do two stages if their layers are ignored: those are in
`Side.units`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.layout import Layout
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec

Name = tuple[int, int, int]
"""(kind, stage among those of the rank, micro-batch within the replica or -1 for operations of the whole step)."""
Status = Literal["same", "only_a", "only_b", "moved_a", "moved_b"]

MOST = 20_000
"""Most operations of a rank that are aligned, from the first."""


@dataclass(frozen=True)
class Side:
    """One rank of one run."""

    spec: RunSpec
    rank: int
    rows: NDArray[np.void]
    """Its SPAN rows of one step."""

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the layers it holds (with tensor parallelism, a part of each)."""
        layout, names = Layout.of(self.spec), self.spec.model.units()
        stages = layout.stages_of(layout.coords(self.rank).place)
        return tuple(names[unit] for stage in stages for unit in layout.stage_units[stage])

    def operations(self) -> list[Name]:
        """Its operations in order of their start, without the STEP."""
        layout = Layout.of(self.spec)
        home = layout.coords(self.rank).place
        place = {s: i for i, s in enumerate(layout.stages_of(home))}
        rows = self.rows[self.rows["kind"] != Kind.STEP]
        rows = rows[np.argsort(rows["start"], kind="stable")]
        columns = (rows[name].tolist() for name in ("kind", "stage", "micro_batch"))
        return [
            (kind, place.get(stage, 0), mb if mb < 0 else mb // layout.replicas[home])
            for kind, stage, mb in zip(*columns, strict=True)
        ]


class Row(NamedTuple):
    """One line of an alignment: an operation of a, of b, or of both."""

    status: Status
    a: Name | None
    b: Name | None


@dataclass(frozen=True)
class Alignment:
    """`rows` in the order of both sides; the counts are operations, not rows."""

    rows: Sequence[Row]
    same: int
    only_a: int
    only_b: int
    moved: int
    cut: bool
    """Whether one of the two had more than MOST operations."""

    @property
    def equal(self) -> bool:
        return not (self.only_a or self.only_b or self.moved)


def align(a: Sequence[Name], b: Sequence[Name]) -> Alignment:
    """Matches the longest common runs first, as difflib does; operations on both sides outside of them have moved."""
    cut = len(a) > MOST or len(b) > MOST
    a, b = a[:MOST], b[:MOST]
    rows: list[Row] = []
    for tag, i, j, k, end in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag == "equal":
            rows += [Row("same", x, y) for x, y in zip(a[i:j], b[k:end], strict=True)]
        else:
            rows += [Row("only_a", x, None) for x in a[i:j]] + [Row("only_b", None, y) for y in b[k:end]]
    return _with_moves(rows, cut)


def _with_moves(rows: Sequence[Row], cut: bool) -> Alignment:
    here = Counter(row.a for row in rows if row.status == "only_a")
    there = Counter(row.b for row in rows if row.status == "only_b")
    moved = here & there
    left = {"only_a": Counter(moved), "only_b": Counter(moved)}
    out = []
    for row in rows:
        name = row.a if row.status == "only_a" else row.b
        if row.status in left and left[row.status][name] > 0:
            left[row.status][name] -= 1
            out.append(row._replace(status="moved_a" if row.status == "only_a" else "moved_b"))
        else:
            out.append(row)
    count = Counter(row.status for row in out)
    return Alignment(out, count["same"], count["only_a"], count["only_b"], moved.total(), cut)


def sentence(a: Side, b: Side, found: Alignment, names: tuple[str, str]) -> str:
    """The alignment in one or two sentences; `names`: of the two sides."""
    total = found.same + found.moved
    if found.equal:
        return f"The same {total} operations in the same order, {_held(a, b)}."
    parts = [f"{found.same} operations are the same"]
    parts += [f"{found.moved} stand elsewhere in the order"] if found.moved else []
    parts += [f"{n} are only on {who}" for n, who in zip((found.only_a, found.only_b), names, strict=True) if n]
    return f"{', '.join(parts)}. {names[0].capitalize()} has {_layers(a)}, {names[1]} {_layers(b)}."


def _held(a: Side, b: Side) -> str:
    here, there = Layout.of(a.spec).coords(a.rank), Layout.of(b.spec).coords(b.rank)
    if a.units != b.units:
        return f"on other layers: {_layers(a)} against {_layers(b)}"
    if a.spec == b.spec and here.tensor != there.tensor:
        return "on its own part of the same layers"
    if a.spec == b.spec and here.replica != there.replica:
        return "the same parameters, different samples"
    return "on the same layers"


def _layers(side: Side) -> str:
    units = side.units
    return units[0] if len(units) == 1 else f"{units[0]} to {units[-1]}" if len(units) > 2 else " and ".join(units)
