"""Aligns the operations of two ranks: the same, only on one of them, or at another position in the order.

An operation is identified by its kind, the number of its stage among those of its rank, and its micro-batch counted
within its replica. So two replicas do the same, and so do two stages if their layers are ignored: those are in
`Side.units`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.quantities import listed_text, plural_text
from parallel_core.analysis.rows import by_start
from parallel_core.analysis.waits import gathers_aside
from parallel_core.layout import Layout
from parallel_core.schedule.ir import COMPUTE, FLIGHT, INSIDE, Kind
from parallel_core.spec import RunSpec

Name = tuple[int, int, int]
"""(kind, stage among those of the rank, micro-batch within the replica or -1 for operations of the whole step)."""
Status = Literal["same", "only_a", "only_b", "moved_a", "moved_b"]

MOST = 20_000
"""Most operations of a rank that are aligned, from the first."""
PARTS = 3
"""Most stretches of layers of a rank that are named."""


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

    @property
    def ordered(self) -> NDArray[np.void]:
        """Its operations: its rows in order of their start, without the STEP and without each flight of a
        collective inside an operation, which is part of the collective that follows it (and missing in older
        recordings), or has no counterpart on the other side (`comparable`)."""
        rows = self.rows[~np.isin(self.rows["kind"], (Kind.STEP, *FLIGHT.values()))]
        return by_start(rows)

    def operations(self) -> list[Name]:
        """The names of its `ordered` rows."""
        layout = Layout.of(self.spec)
        home = layout.coords(self.rank).place
        place = {s: i for i, s in enumerate(layout.stages_of(home))}
        rows = self.ordered
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

    @property
    def statuses(self) -> tuple[list[Status], list[Status]]:
        """The status of each operation of a, and of each of b, in the order of its side."""
        a, b = ([row.status for row in self.rows if getattr(row, side) is not None] for side in ("a", "b"))
        return a, b


def comparable(a: Side, b: Side) -> tuple[Side, Side]:
    """Both sides without gathers of layers' parameters where one of them has only the flights of its gathers."""
    if not any(gathers_aside({side.rank: side.rows}) for side in (a, b)):
        return a, b
    first, second = (replace(side, rows=side.rows[side.rows["kind"] != Kind.UNSHARD]) for side in (a, b))
    return first, second


def align_sides(a: Side, b: Side) -> Alignment:
    """Matches as many operations as have the same order on both sides; others that are on both sides have moved. The
    operations are those of the `comparable` sides."""
    left, right = (side.operations() for side in comparable(a, b))
    cut = len(left) > MOST or len(right) > MOST
    left, right = left[:MOST], right[:MOST]
    return _with_moves(_rows(left, right, _in_order(_distinct(left), _distinct(right))), cut)


def align(a: Sequence[Name], b: Sequence[Name]) -> Alignment:
    """Matches as many operations as have the same order on both sides; others that are on both sides have moved.

    For names that repeat, of an imported trace; time and memory grow with the product of their numbers.
    """
    return _with_moves(_rows(a, b, _longest_common(a, b)), False)


def _distinct(names: Iterable[Name]) -> list[Hashable]:
    """The names made different from each other: collectives inside operations have the stage and micro-batch of theirs,
    and are counted in its forward and in its backward."""
    backward, count, out = set[tuple[int, int]](), Counter[Hashable](), list[Hashable]()
    for name in names:
        kind, *where = name
        if kind in COMPUTE and kind != Kind.F:
            backward.add((where[0], where[1]))
        key = (*name, kind in INSIDE and (where[0], where[1]) in backward)
        out.append((*key, count[key]))
        count[key] += 1
    return out


def _in_order(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The most pairs of equal keys (index in a, index in b) that are in the same order in both; no key repeats. This is
    a longest increasing subsequence, found with one binary search for each key."""
    place = {key: j for j, key in enumerate(b)}
    pairs = [(i, place[key]) for i, key in enumerate(a) if key in place]
    ends: list[int] = []
    """The least index in b at which a sequence of each length ends; `last`: that pair, `before`: the pair before it."""
    last, before = list[int](), list[int]()
    for n, (_, j) in enumerate(pairs):
        length = bisect_left(ends, j)
        before.append(last[length - 1] if length else -1)
        ends[length : length + 1], last[length : length + 1] = [j], [n]
    found, n = list[tuple[int, int]](), last[-1] if last else -1
    while n >= 0:
        found.append(pairs[n])
        n = before[n]
    return found[::-1]


def _longest_common(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int]]:
    """A longest common subsequence, as pairs (index in a, index in b); names may repeat.

    By dynamic programming (Wagner and Fischer 1974), a row at a time: the length for the first i of a and j of b is
    the running maximum over j of what the row before gives without and with the pair (i, j).
    """
    first = _alike(a, b)
    last = _alike(a[first:][::-1], b[first:][::-1])
    number: dict[Hashable, int] = {}
    left, right = (
        np.array([number.setdefault(name, len(number)) for name in side[first : len(side) - last]], np.int64)
        for side in (a, b)
    )
    lengths = np.zeros((len(left) + 1, len(right) + 1), np.int32)
    for i, name in enumerate(left):
        with_pair = lengths[i, :-1] + (right == name)
        np.maximum.accumulate(np.maximum(lengths[i, 1:], with_pair), out=lengths[i + 1, 1:])
    found, i, j = list[tuple[int, int]](), len(left), len(right)
    while i and j:
        if left[i - 1] == right[j - 1]:
            i, j = i - 1, j - 1
            found.append((first + i, first + j))
        elif lengths[i - 1, j] >= lengths[i, j - 1]:
            i -= 1
        else:
            j -= 1
    ends = ((len(a) - n, len(b) - n) for n in range(last, 0, -1))
    return [*((n, n) for n in range(first)), *found[::-1], *ends]


def _alike(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """How many of the first names are equal."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((n for n, (x, y) in pairs if x != y), min(len(a), len(b)))


def _rows(a: Sequence[Name], b: Sequence[Name], matched: Iterable[tuple[int, int]]) -> list[Row]:
    """The rows of both sides, of which the `matched` pairs of indices are the same."""
    rows: list[Row] = []
    i = j = 0
    for k, m in (*matched, (len(a), len(b))):
        rows += [Row("only_a", x, None) for x in a[i:k]] + [Row("only_b", None, y) for y in b[j:m]]
        rows += [Row("same", x, y) for x, y in zip(a[k : k + 1], b[m : m + 1], strict=True)]
        i, j = k + 1, m + 1
    return rows


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
    unlike = a.units != b.units
    alike = "of the same kind and micro-batch" if unlike else "the same"
    parts = [f"{plural_text(found.same, 'operation')} {'is' if found.same == 1 else 'are'} {alike}"]
    parts += [f"{found.moved} stand{'s' if found.moved == 1 else ''} elsewhere in the order"] if found.moved else []
    only = [f"{n} only on {who}" for n, who in zip((found.only_a, found.only_b), names, strict=True) if n]
    layers = f"{names[0].capitalize()} has {_layers(a)}, {names[1]} {_layers(b)}."
    counted = f"{', '.join([*parts, *only])}."
    return f"{layers} {counted}" if unlike else f"{counted} {layers}"


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
    """Its layers, stage by stage where others lie between: a rank of a V has the first and the last of the model."""
    at = {unit: i for i, unit in enumerate(side.spec.model.units())}
    parts: list[list[str]] = []
    for unit in side.units:
        if parts and at[unit] == at[parts[-1][-1]] + 1:
            parts[-1].append(unit)
        else:
            parts.append([unit])
    if len(parts) == 1 and len(side.units) == 2:
        return " and ".join(side.units)
    told = [part[0] if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts[:PARTS]]
    return listed_text([*told, f"{len(parts) - PARTS} more parts"] if len(parts) > PARTS else told)
