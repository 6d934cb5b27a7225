"""Recognizes pipelines without annotations that have several stages per rank, or split backwards, by known schedules.

Where messages also go from the last rank to the first, or a backward consists of two parts, counting messages does not
determine stage and micro-batch of a forward. So every schedule of this engine is compared with what the ranks did. It
matches if on every rank it has the same number of messages, the same forwards and backwards between two sends, and no
operation begins before its inputs were made. If two matching schedules name operations differently, none is chosen.
Between some operations nothing is sent (a weight gradient and the next): these are separated at the longest gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.schedule.ir import RECVS, SENDS, Kind, Op, Program
from parallel_core.simulate import recovered
from parallel_core.traces import messages
from parallel_core.traces.inferred_pipeline import NotCounted
from parallel_core.traces.known_programs import ProgramVariant, candidates, label
from parallel_core.traces.pieces import Piece, parted, reached, stretches, take_crumbs, usual_length

Spans = Mapping[int, NDArray[np.void]]
SLACK = 0.25
"""Fraction of the shortest operation by which one may begin before its input is made, since clocks differ."""


class MatchedOp(NamedTuple):
    """An operation of a rank and the rows (indices) that it consists of; times in ns."""

    op: Op
    rows: tuple[int, ...]
    start: int
    end: int


class Order(NamedTuple):
    """A schedule's name, and what each rank did, in order."""

    name: str
    done: Mapping[int, tuple[MatchedOp, ...]]


def ordered(spans: Spans) -> tuple[str, dict[int, NDArray[np.void]]]:
    """Returns the name of the one known schedule that matches, and the spans with its stages and micro-batches.

    Raises NotCounted where none matches, or several do.
    """
    fitting = next((found for places in _lines(spans) if (found := _fitting(spans, places))), [])
    if not fitting:
        raise NotCounted("what the ranks did is the order of no schedule known here")
    if len(fitting) > 1:
        listed = " and ".join(label(order.name) for order in fitting)
        raise NotCounted(f"what the ranks did could be the order of {listed} alike")
    (order,) = fitting
    made = {rank: _named(rows, order.done[rank]) for rank, rows in spans.items()}
    return order.name, messages.named(made, {rank: [_plain(one) for one in own] for rank, own in order.done.items()})


def _plain(one: MatchedOp) -> recovered.RecoveredOp:
    return recovered.RecoveredOp(one.op.kind, one.op.stage, one.op.micro_batch, one.start, one.end)


def _fitting(spans: Spans, places: Sequence[Sequence[int]]) -> list[Order]:
    """Returns all matching schedules; of those that name all operations alike, only the first."""
    out: list[Order] = []
    sent = [{(_count(spans[rank], SENDS), _count(spans[rank], RECVS)) for rank in own} for own in places]
    for name, variants in candidates(len(places), next(iter(sent[0]))[0], sent):
        found = next((done for variant in variants if (done := _fitted(spans, places, variant)) is not None), None)
        if found is not None and not any(_same(found, known.done) for known in out):
            out.append(Order(name, found))
    return out


def _lines(spans: Spans) -> list[list[list[int]]]:
    """Returns candidates for the ranks of each pipeline place (replicas together), the most likely first.

    Places are ordered by when their ranks begin, or by when they have done a quarter of their forwards, in case
    something else was taken for the beginning.
    """
    sends = {rank: _count(rows, SENDS) for rank, rows in spans.items()}
    replicas = list(sends.values()).count(min(sends.values())) // 2  # the first and the last place send least
    if not replicas or len(spans) % replicas:
        raise NotCounted("the ranks make no pipelines of equal length")
    found: list[list[list[int]]] = []
    for share in (0.0, 0.25):
        order = sorted(spans, key=lambda rank: reached(spans[rank], share))
        places = [sorted(order[i : i + replicas]) for i in range(0, len(order), replicas)]
        found += [places] if places not in found else []
    return found


def _count(rows: NDArray[np.void], kinds: frozenset[Kind]) -> int:
    return int(np.isin(rows["kind"], [int(kind) for kind in kinds]).sum())


def _same(one: Mapping[int, tuple[MatchedOp, ...]], other: Mapping[int, tuple[MatchedOp, ...]]) -> bool:
    return all([done.op for done in one[rank]] == [done.op for done in other[rank]] for rank in one)


def _fitted(
    spans: Spans, places: Sequence[Sequence[int]], variant: ProgramVariant
) -> dict[int, tuple[MatchedOp, ...]] | None:
    """Returns what each rank did if the order was `variant`; None where it does not match."""
    out: dict[int, tuple[MatchedOp, ...]] = {}
    stages = 1 + max(op.stage for program in variant.programs for op in program)
    for q, own in enumerate(places):
        for rank in own:
            done = _of_rank(spans[rank], variant.programs[q], stages, variant.late)
            if done is None:
                return None
            out[rank] = done
    return out if _in_time([[out[rank] for rank in own] for own in places]) else None


def _of_rank(
    rows: NDArray[np.void], program: Program, stages: int, late: frozenset[Op]
) -> tuple[MatchedOp, ...] | None:
    """Finds the operations of `program` in a rank's rows: between two sends exactly those that it has there; None
    otherwise."""
    begun = np.sort(rows["start"][np.isin(rows["kind"], [int(kind) for kind in SENDS])]).tolist()
    groups = _groups(program, stages, late)
    if len(groups) != len(begun) + 1:
        return None
    usual = {forward: usual_length(rows, begun, groups, forward) for forward in (True, False)}
    pieces = stretches(rows, usual)
    while pieces and pieces[-1].forward and program[-1].kind is not Kind.F:
        pieces.pop()  # not a forward: for example the scaling of gradients after the last backward
    at = np.searchsorted(begun, [piece.start for piece in pieces], "right").tolist()
    out: list[MatchedOp] = []
    for g, ops in enumerate(groups):
        mine = [piece for piece, where in zip(pieces, at, strict=True) if where == g]
        if not any(op.kind is Kind.F for op in ops):  # where no forward is expected, ignore short ones
            mine = [piece for piece in mine if not piece.forward or piece.busy >= usual[True][0]]
        found = _aligned(mine, ops)
        if found is None:
            return None
        for piece, own in found:
            parts = parted(rows, piece, own)
            if parts is None:
                return None
            out += [_done(rows, op, part) for op, part in zip(own, parts, strict=True)]
    return tuple(out)


def _groups(program: Program, stages: int, late: frozenset[Op]) -> list[list[Op]]:
    """Returns the operations up to each one that sends, and those after the last; what a `late` one sends goes out
    after the next operation."""
    mine = {op.stage for op in program}
    out: list[list[Op]] = [[]]
    owed = 0
    for op in program:
        out[-1].append(op)
        sends = _sends(op, stages, mine)
        if op in late:
            owed = sends
            continue
        out += [[] for _ in range(sends + owed)]
        owed = 0
    return out


def _aligned(pieces: Sequence[Piece], ops: Sequence[Op]) -> list[tuple[NDArray[np.int64], list[Op]]] | None:
    """Assigns the pieces' rows to operations, in order; None where forwards and backwards do not alternate in the same
    way."""
    wanted = [list(own) for _, own in groupby(ops, lambda op: op.kind is Kind.F)]
    given = [list(own) for _, own in groupby(pieces, lambda piece: piece.forward)]
    if [own[0].forward for own in given] != [own[0].kind is Kind.F for own in wanted]:
        return None
    if any(len(parts) > len(own) for parts, own in zip(given, wanted, strict=True)):
        return None
    return [
        one
        for parts, own in zip(given, wanted, strict=True)
        for one in (
            [(part.rows, [op]) for part, op in zip(parts, own, strict=True)]
            if len(parts) == len(own)
            else [(np.concatenate([part.rows for part in parts]), own)]
        )
    ]


def _done(rows: NDArray[np.void], op: Op, part: NDArray[np.int64]) -> MatchedOp:
    return MatchedOp(op, tuple(part.tolist()), int(rows["start"][part].min()), int(rows["end"][part].max()))


def _sends(op: Op, stages: int, mine: set[int]) -> int:
    if op.kind is Kind.W:
        return 0
    to = op.stage + (1 if op.kind is Kind.F else -1)
    return int(0 <= to < stages and to not in mine)


def _in_time(places: Sequence[Sequence[Sequence[MatchedOp]]]) -> bool:
    """Whether each operation begins after its input was made; with replicas, by the one that ends first."""
    every = [one for own in places for done in own for one in done]
    slack = int(SLACK * min(one.end - one.start for one in every))
    ends: dict[tuple[bool, int, int], int] = {}
    for one in every:
        if one.op.kind is not Kind.W:
            key = one.op.kind is Kind.F, one.op.stage, one.op.micro_batch
            ends[key] = min(ends.get(key, one.end), one.end)
    for one in every:
        forward, stage, i = one.op.kind is Kind.F, one.op.stage, one.op.micro_batch
        needed = ends.get((forward, stage - 1 if forward else stage + 1, i), one.start)
        if one.op.kind is not Kind.W and needed > one.start + slack:
            return False
    return True


def _named(rows: NDArray[np.void], done: Sequence[MatchedOp]) -> NDArray[np.void]:
    out = rows.copy()
    for one in done:
        chosen = np.array(one.rows)
        halves = np.isin(out["kind"][chosen], [int(kind) for kind in (Kind.B, Kind.W, Kind.BW)])
        out["kind"][chosen[halves]] = one.op.kind
        out["stage"][chosen], out["micro_batch"][chosen] = one.op.stage, one.op.micro_batch
    for one in done:
        take_crumbs(out, np.array(one.rows), one.op.kind, one.op.stage, one.op.micro_batch)
    return out
