"""Pipelines of several stages a rank, or of split backwards, that nothing annotates: the orders of known schedules.

Where messages wrap from the last rank to the first, or a backward comes in two parts, counting alone does not say which
stage and micro-batch a forward is of. So the order of every schedule of this engine is held against what the ranks
did. One is taken for it when on every rank it makes as many messages, the same forwards and backwards stand between two
sends, and none begins before what it needs has ended. Two orders that fit and differ are none. Between some operations
nothing is sent (a weight gradient and the next): those are parted at the longest pauses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.schedule import compute_only, names
from parallel_core.schedule.ir import RECVS, SENDS, Kind, Op, Program
from parallel_core.schedule.passes.communicate import communicate
from parallel_core.schedule.traits import TRAITS, flushes
from parallel_core.simulate import recovered
from parallel_core.traces import messages
from parallel_core.traces.pieces import Piece, parted, reached, stretches, take_crumbs, usual_length
from parallel_core.traces.unnamed import NotCounted

Spans = Mapping[int, NDArray[np.void]]
WHOLE_FIRST = ("zb-h1", "zb-v", "dualpipe-v")
"""Schedules of torch.distributed.pipelining that split backwards. It leaves the first stage's whole."""
MOST_CHUNKS = 8
"""Stages of a rank that are looked for."""
SLACK = 0.25
"""Of the shortest operation: by so much one may begin before what it needs has ended, for clocks differ."""


class Done(NamedTuple):
    """An operation of a rank and the rows (indices into the rank's) that it is made of; ns."""

    op: Op
    rows: tuple[int, ...]
    start: int
    end: int


class Order(NamedTuple):
    """The schedule's name, and of each rank what it did in order."""

    name: str
    done: Mapping[int, tuple[Done, ...]]


def ordered(spans: Spans) -> tuple[str, dict[int, NDArray[np.void]]]:
    """The name of the one known order that fits, and the spans with its stages and micro-batches.

    Raises NotCounted where none fits, or several do.
    """
    fitting = next((found for places in _lines(spans) if (found := _fitting(spans, places))), [])
    if not fitting:
        raise NotCounted("what the ranks did is the order of no schedule known here")
    if len(fitting) > 1:
        listed = " and ".join(TRAITS[order.name].label for order in fitting)
        raise NotCounted(f"what the ranks did could be the order of {listed} alike")
    (order,) = fitting
    made = {rank: _named(rows, order.done[rank]) for rank, rows in spans.items()}
    return order.name, messages.named(made, {rank: [_plain(one) for one in own] for rank, own in order.done.items()})


def _plain(one: Done) -> recovered.Done:
    return recovered.Done(one.op.kind, one.op.stage, one.op.micro_batch, one.start, one.end)


def _fitting(spans: Spans, places: Sequence[Sequence[int]]) -> list[Order]:
    """All that fit; of those that name all operations alike the simplest."""
    out: list[Order] = []
    for name, ways in _candidates(spans, places):
        found = next((done for programs in ways if (done := _fitted(spans, places, programs)) is not None), None)
        if found is not None and not any(_same(found, known.done) for known in out):
            out.append(Order(name, found))
    return out


def _lines(spans: Spans) -> list[list[list[int]]]:
    """The ranks of each place of a pipeline, replicas next to each other, likeliest first: a place begins behind the
    one ahead of it, or, where something else was taken for its beginning, does its first quarter of forwards behind."""
    sends = {rank: _count(rows, SENDS) for rank, rows in spans.items()}
    replicas = list(sends.values()).count(min(sends.values())) // 2  # the first place and the last send least
    if not replicas or len(spans) % replicas:
        raise NotCounted("the ranks make no pipelines of equal length")
    found: list[list[list[int]]] = []
    for share in (0.0, 0.25):
        order = sorted(spans, key=lambda rank: reached(spans[rank], share))
        places = [sorted(order[i : i + replicas]) for i in range(0, len(order), replicas)]
        found += [places] if places not in found else []
    return found


def _candidates(spans: Spans, places: Sequence[Sequence[int]]) -> Iterator[tuple[str, list[list[Program]]]]:
    """(name, compute of each place in each of `_ways`) of the schedules that make as many messages on each rank."""
    sent = [{(_count(spans[rank], SENDS), _count(spans[rank], RECVS)) for rank in own} for own in places]
    pp, (ends, _) = len(places), next(iter(sent[0]))
    for name in names():
        traits = TRAITS[name]
        for chunks in range(traits.least, min(traits.most or MOST_CHUNKS, MOST_CHUNKS) + 1) if flushes(name) else ():
            links = 2 if traits.shape == "v" else 2 * chunks - 1
            count = ends // links
            if not count or ends % links or (traits.pairs and count < 2 * pp):
                continue
            made = compute_only(name, pp, count, chunks=chunks)
            if [{_messages(program)} for program in communicate(made).programs] == sent:
                parts = [tuple(part for op in program for part in op.parts()) for program in made.programs]
                yield name, _ways(parts, name in WHOLE_FIRST)


def _count(rows: NDArray[np.void], kinds: frozenset[Kind]) -> int:
    return int(np.isin(rows["kind"], [int(kind) for kind in kinds]).sum())


def _messages(program: Program) -> tuple[int, int]:
    return sum(op.kind in SENDS for op in program), sum(op.kind in RECVS for op in program)


def _ways(programs: list[Program], whole_first: bool) -> list[list[Program]]:
    """The first stage needs no gradient of its input: its backward may be whole, where its W or its B stands. Where
    nothing parts the two it is taken as whole."""
    whole = [
        [
            tuple(
                Op(Kind.BW, op.stage, op.micro_batch) if op.stage == 0 and op.kind is kept else op
                for op in program
                if op.stage or op.kind is not other
            )
            for program in programs
        ]
        for kept, other in ((Kind.W, Kind.B), (Kind.B, Kind.W))
    ]
    return [*whole, programs] if whole_first else [programs]


def _same(one: Mapping[int, tuple[Done, ...]], other: Mapping[int, tuple[Done, ...]]) -> bool:
    return all([done.op for done in one[rank]] == [done.op for done in other[rank]] for rank in one)


def _fitted(
    spans: Spans, places: Sequence[Sequence[int]], programs: Sequence[Program]
) -> dict[int, tuple[Done, ...]] | None:
    """What each rank did, if this was the order; None where it was not."""
    out: dict[int, tuple[Done, ...]] = {}
    stages = 1 + max(op.stage for program in programs for op in program)
    for q, own in enumerate(places):
        for rank in own:
            done = _of_rank(spans[rank], programs[q], stages)
            if done is None:
                return None
            out[rank] = done
    return out if _in_time([[out[rank] for rank in own] for own in places]) else None


def _of_rank(rows: NDArray[np.void], program: Program, stages: int) -> tuple[Done, ...] | None:
    """The operations of `program` found in the rows: between two sends what stands between them there, and no more."""
    begun = np.sort(rows["start"][np.isin(rows["kind"], [int(kind) for kind in SENDS])]).tolist()
    groups = _groups(program, stages)
    if len(groups) != len(begun) + 1:
        return None
    usual = {forward: usual_length(rows, program, forward) for forward in (True, False)}
    pieces = stretches(rows, usual)
    while pieces and pieces[-1].forward and program[-1].kind is not Kind.F:
        pieces.pop()  # behind the last backward gradients are scaled, say
    at = np.searchsorted(begun, [piece.start for piece in pieces], "right").tolist()
    out: list[Done] = []
    for g, ops in enumerate(groups):
        mine = [piece for piece, where in zip(pieces, at, strict=True) if where == g]
        if not any(op.kind is Kind.F for op in ops):  # what is no whole forward is none, where there is to be none
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


def _groups(program: Program, stages: int) -> list[list[Op]]:
    """The operations up to each one that sends, and those behind the last."""
    mine = {op.stage for op in program}
    out: list[list[Op]] = [[]]
    for op in program:
        out[-1].append(op)
        if _sends(op, stages, mine):
            out.append([])
    return out


def _aligned(pieces: Sequence[Piece], ops: Sequence[Op]) -> list[tuple[NDArray[np.int64], list[Op]]] | None:
    """The rows of the pieces with the operations that they are of, in order. Kinds alternate alike, or None."""
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


def _done(rows: NDArray[np.void], op: Op, part: NDArray[np.int64]) -> Done:
    return Done(op, tuple(part.tolist()), int(rows["start"][part].min()), int(rows["end"][part].max()))


def _sends(op: Op, stages: int, mine: set[int]) -> int:
    if op.kind is Kind.W:
        return 0
    to = op.stage + (1 if op.kind is Kind.F else -1)
    return int(0 <= to < stages and to not in mine)


def _in_time(places: Sequence[Sequence[Sequence[Done]]]) -> bool:
    """Whether each begins when what it needs has ended; of replicas, on the one that ends first."""
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


def _named(rows: NDArray[np.void], done: Sequence[Done]) -> NDArray[np.void]:
    out = rows.copy()
    for one in done:
        chosen = np.array(one.rows)
        halves = np.isin(out["kind"][chosen], [int(kind) for kind in (Kind.B, Kind.W, Kind.BW)])
        out["kind"][chosen[halves]] = one.op.kind
        out["stage"][chosen], out["micro_batch"][chosen] = one.op.stage, one.op.micro_batch
    for one in done:
        take_crumbs(out, np.array(one.rows), one.op.kind, one.op.stage, one.op.micro_batch)
    return out
