"""What a rank holds during its program, in numbers of micro-batches and messages: whatever the sizes of its layers.

Memory is linear in these numbers, so only moments at which they change their course can be its peak. They are found
once for a pipeline, from its runs (`schedule.runs`) or by a walk through its program, and serve models of any size.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.plan.in_flight import saturated
from parallel_core.plan.messages import HeldMessages
from parallel_core.plan.run_counts import At, Receiving, RunCounts
from parallel_core.schedule import plain, runs_of
from parallel_core.schedule.ir import AHEAD, Kind, Op, Schedule
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.traits import TRAITS, place
from parallel_core.spec import ParallelSpec

Ints = NDArray[np.int64]
What = Literal["forward", "weights", "message"]
Column = tuple[What, int]
"""Micro-batches of a stage between F and B (`forward`), those between B and W (`weights`), or messages with the size of
what enters a stage (`message`)."""
_DIGITS = 32
"""Bits of one number of messages where all of them are one integer."""


class Moment(NamedTuple):
    """Compute of `kind` on `stage`. `rest`: whole buckets in flight since the last gradient: 0 before the first one, 1
    after the first of a stage, 2 after a later one."""

    kind: Kind
    stage: int
    rest: int


class HeldCounts(NamedTuple):
    """Numbers of each column (`rows`: [moment, column]) while `moments[which]` run, in program order."""

    columns: tuple[Column, ...]
    moments: tuple[Moment, ...]
    which: Ints
    rows: Ints


@lru_cache(maxsize=4096)
def held_counts(
    split: ParallelSpec, stages: tuple[int, ...], replica: int, again: frozenset[int], unfed: frozenset[int]
) -> HeldCounts:
    """The moments at which memory may peak on a rank of `stages`, with one device a stage (`in_flight.alike`).

    An output in `again` is recomputed, so that a copy is kept until it is received; stages in `unfed` receive nothing
    from this rank (`Layout.unfed_stages`).
    """
    columns = _columns(stages)
    if runs_of(split, 0) is not None:
        return _kept(columns, _of_runs(split, stages, columns, again, unfed))
    return _bends(_kept(columns, _walk(split, stages, columns, replica, again, unfed)))


_Row = tuple[Moment, tuple[int, ...]]


def _columns(stages: Sequence[int]) -> tuple[Column, ...]:
    edges = sorted({edge for stage in stages for edge in (stage, stage + 1)})
    what: tuple[What, What] = ("forward", "weights")
    return (*((name, stage) for name in what for stage in stages), *(("message", edge) for edge in edges))


def _kept(columns: tuple[Column, ...], rows: Iterable[_Row]) -> HeldCounts:
    """Each row once, where it comes first."""
    once = dict.fromkeys(rows)
    moments = dict.fromkeys(moment for moment, _ in once)
    number = {moment: i for i, moment in enumerate(moments)}
    which = np.array([number[moment] for moment, _ in once], np.int64)
    return HeldCounts(columns, tuple(moments), which, np.array([counts for _, counts in once], np.int64))


def _bends(found: HeldCounts) -> HeldCounts:
    """Without the rows of a kind of moment that lie midway between the one before and the one after it."""
    bend = np.ones(len(found.rows), bool)
    for number in range(len(found.moments)):
        own = np.flatnonzero(found.which == number)
        change = np.diff(found.rows[own], axis=0)
        bend[own[1:-1]] = (change[1:] != change[:-1]).any(axis=1)
    return found._replace(which=found.which[bend], rows=found.rows[bend])


def _walk(
    split: ParallelSpec,
    stages: tuple[int, ...],
    columns: Sequence[Column],
    replica: int,
    again: frozenset[int],
    unfed: frozenset[int],
) -> Iterator[_Row]:
    """Every compute operation of the rank's program. Without turns all replicas are alike, so the first one stands for
    them."""
    made = _messaged(saturated(split))
    here = made.placement[stages[0]][replica if split.replicas is not None else 0]
    edges = [edge for what, edge in columns if what == "message"]
    digits = {edge: 1 << _DIGITS * i for i, edge in enumerate(edges)}
    tracked = _Tracked(stages)
    for op, held in HeldMessages(made, here, digits, again, unfed).walk():
        messages = tuple(held >> _DIGITS * i & (1 << _DIGITS) - 1 for i in range(len(edges)))
        moment, counts = tracked.run(op)
        yield moment, counts + messages


@lru_cache(maxsize=64)
def _messaged(split: ParallelSpec) -> Schedule:
    return communicate(plain(split))


class _Tracked:
    """Micro-batches that a rank holds while its program runs."""

    def __init__(self, stages: Sequence[int]) -> None:
        self._stages, self._rest, self._once = stages, 0, set[int]()
        self._forward, self._weights = Counter[int](), Counter[int]()

    def run(self, op: Op) -> tuple[Moment, tuple[int, ...]]:
        """Runs `op`; returns what is held meanwhile."""
        n, kind = op.stage, op.kind
        self._forward[n] += (kind is Kind.F) - (kind in (Kind.B, Kind.BW))
        held = *(self._forward[stage] for stage in self._stages), *(self._weights[stage] for stage in self._stages)
        moment = Moment(kind, n, self._rest)
        self._weights[n] += (kind is Kind.B) - (kind is Kind.W)
        if kind in (Kind.W, Kind.BW):
            self._rest = 2 if n in self._once else 1
            self._once.add(n)
        return moment, held


def _counts(split: ParallelSpec, stage: int) -> RunCounts:
    """Counts of the rank that holds `stage`."""
    return _counts_of(split, place(TRAITS[split.schedule].shape, stage, split.pp))


@lru_cache(maxsize=64)
def _counts_of(split: ParallelSpec, where: int) -> RunCounts:
    return RunCounts(runs_of(split, where) or ())


def _of_runs(
    split: ParallelSpec,
    stages: tuple[int, ...],
    columns: Sequence[Column],
    again: frozenset[int],
    unfed: frozenset[int],
) -> Iterator[_Row]:
    """The operations at which a number may change its course, from the runs of the rank and its neighbours."""
    own, beyond = _counts(split, stages[0]), (-1, split.stages)
    linked = [(stage, step) for stage in stages for step in (-1, 1) if stage + step not in (*beyond, *stages)]
    links = [Receiving.on(stage, step, own, _counts(split, stage + step)) for stage, step in linked]
    at = own.sampled(links, AHEAD)
    found: dict[Column, Ints] = defaultdict(lambda: np.zeros(len(at.run), np.int64))
    for stage in stages:
        found.update(_of_stage(own, stage, at))
        if stage + 1 in stages:
            found["message", stage + 1] = found["message", stage + 1] + _handed_on(own, stage, at, stage in again)
    for (stage, step), link in zip(linked, links, strict=True):
        edge = max(stage, stage + step)
        posted = np.minimum(AHEAD, split.micro_batches - own.done(link.taken, at, True))
        found["message", edge] = found["message", edge] + posted
        if stage + step not in unfed and (step < 0 or stage in again):
            same = [other for other in links if other.peer is link.peer]
            found["message", edge] = found["message", edge] + own.unproven(link, same, at)
    rest = own.rest(stages, at)
    kinds = [Moment(*one, level) for one, level in zip(own.named(at), rest.tolist(), strict=True)]
    table = np.stack([found[column] for column in columns], axis=1)
    return zip(kinds, map(tuple, table.tolist()), strict=True)


def _of_stage(own: RunCounts, stage: int, at: At) -> dict[Column, Ints]:
    """Micro-batches between the computations of a stage."""
    back = own.backward(stage)
    found: dict[Column, Ints] = {("forward", stage): own.done((Kind.F, stage), at, True) - own.done(back, at, True)}
    if back[0] is Kind.B:
        found["weights", stage] = own.done(back, at, False) - own.done((Kind.W, stage), at, False)
    return found


def _handed_on(own: RunCounts, stage: int, at: At, again: bool) -> Ints:
    """Messages that a stage hands to the next one of its rank, with copies of its outputs if they are made `again`."""
    held = own.done(own.backward(stage + 1), at, False) - own.done(own.backward(stage), at, True)
    if again:
        held = held + own.done((Kind.F, stage), at, False) - own.done((Kind.F, stage + 1), at, True)
    return held
