"""Infers stages and micro-batches of a pipeline without annotations, by counting the messages of one step.

In a pipeline with one stage per rank the first rank sends each of m micro-batches and receives m gradients, the last
does the reverse, and each one between does both: so the numbers of sends and receives determine the number of
micro-batches, and whether a rank is at an end. Of the two ends, the first computes before anything arrives. Those
between are ordered by when they begin. Autograd distinguishes forward from backward; messages separate micro-batches.
If anything is inconsistent, nothing is inferred. Backwards are assumed to be in the order of the forwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.rows import starts
from parallel_core.schedule.ir import RECVS, SENDS, Kind
from parallel_core.traces.pieces import BACKWARD, FORWARD, take_crumbs

Spans = Mapping[int, NDArray[np.void]]
NOISE = 0.5
"""Work of at most this fraction of the shortest forward (or backward) is not one: a buffer, or clean-up."""
LEFT = 0.25
"""Limit of all work ignored in this way, as a fraction of the rest: separate weight gradients would exceed it."""
_SENDS, _RECVS = ([int(kind) for kind in sorted(group)] for group in (SENDS, RECVS))


class NotCounted(ValueError):
    """Stages and micro-batches cannot be inferred; the message is the reason, worded as the end of a sentence."""


class Pass(NamedTuple):
    """The forward or backward of one micro-batch, with the rows (indices) that it consists of; times in ns."""

    forward: bool
    rows: tuple[int, ...]
    start: int
    end: int
    busy: int


def counted(spans: Spans) -> dict[int, NDArray[np.void]]:
    """Returns the spans with stage and micro-batch set in forwards, backwards and messages.

    Raises NotCounted where the messages of this step are not those of such a pipeline.
    """
    ends, micro_batches = _ends(spans)
    passes = {rank: _passes(rank, rows, micro_batches) for rank, rows in spans.items()}
    stages = _stages(spans, passes, ends)
    _require_in_time(passes, stages)
    return {rank: _named(rows, passes[rank], stages[rank]) for rank, rows in spans.items()}


def whole(spans: Spans) -> bool:
    """Whether there are several ranks, each of which sends and receives equally often."""
    counts = [[int(np.isin(rows["kind"], group).sum()) for group in (_SENDS, _RECVS)] for rows in spans.values()]
    return len(spans) > 1 and all(sent == got > 0 for sent, got in counts)


def _ends(spans: Spans) -> tuple[set[int], int]:
    """Returns (ranks at the ends of pipelines, which send least, number of micro-batches)."""
    sends, receives = ({r: int(np.isin(rows["kind"], g).sum()) for r, rows in spans.items()} for g in (_SENDS, _RECVS))
    if len(spans) < 2:
        raise NotCounted("only one rank has a trace")
    silent = [rank for rank in spans if not sends[rank] or not receives[rank]]
    if silent:
        raise NotCounted(f"rank {silent[0]} does not both send and receive in this step")
    uneven = [rank for rank in spans if sends[rank] != receives[rank]]
    if uneven:
        rank = uneven[0]
        raise NotCounted(f"rank {rank} sends {sends[rank]} times and receives {receives[rank]} times")
    fewest = min(sends.values())
    ends = {rank for rank, count in sends.items() if count == fewest}
    odd = [rank for rank, count in sends.items() if rank not in ends and count != 2 * fewest]
    if odd:
        raise NotCounted(f"rank {odd[0]} sends {sends[odd[0]]} times, another {fewest}: neither as often nor twice")
    if len(ends) % 2 or len(spans) % (len(ends) // 2):
        raise NotCounted(f"{len(ends)} of {len(spans)} ranks send least, which makes no pipelines of equal length")
    return ends, fewest


def _passes(rank: int, rows: NDArray[np.void], micro_batches: int) -> list[Pass]:
    """Returns the forwards and backwards of a rank, in order; as many of each as there are micro-batches."""
    out: list[Pass] = []
    before = 1 << 62
    for forward in (False, True):
        own = [piece for piece in _pieces(rows) if piece.forward is forward and piece.start < before]
        own.sort(key=lambda piece: -piece.busy)
        kept, rest = own[:micro_batches], own[micro_batches:]
        if len(kept) < micro_batches or not _crumbs(rest, kept):
            name = "forwards" if forward else "backwards"
            raise NotCounted(f"messages part {len(own)} {name} on rank {rank}, for {micro_batches} micro-batches")
        before = max(piece.start for piece in kept)  # after the last backward, for example, gradients are scaled
        out += kept
    return sorted(out, key=lambda piece: piece.start)


def _crumbs(rest: list[Pass], kept: list[Pass]) -> bool:
    """Whether the remaining work is small enough to be ignored, individually and in total."""
    each = all(one.busy <= NOISE * kept[-1].busy for one in rest)
    return each and sum(one.busy for one in rest) <= LEFT * sum(one.busy for one in kept)


def _pieces(rows: NDArray[np.void]) -> list[Pass]:
    """Returns stretches of forward or backward during which no message begins; fragments of the other kind do not
    separate them (the backward's thread cleans up after each node)."""
    begun = np.sort(rows["start"][np.isin(rows["kind"], _SENDS + _RECVS)])
    work = np.flatnonzero(np.isin(rows["kind"], [int(kind) for kind in (*FORWARD, *BACKWARD)]))
    work = work[np.argsort(rows["start"][work], kind="stable")]
    forward = np.isin(rows["kind"][work], [int(kind) for kind in FORWARD])
    window = np.searchsorted(begun, starts(rows)[work], side="right")
    out = []
    for between in np.unique(window):
        here = np.flatnonzero(window == between)
        out += _split(rows, work[here], forward[here])
    return out


def _split(rows: NDArray[np.void], work: NDArray[np.int64], forward: NDArray[np.bool_]) -> list[Pass]:
    """Combines the work of each kind: at most one forward and one backward are between two messages."""
    out = []
    for kind in (True, False):
        own = work[forward == kind]
        if len(own):
            start, end = rows["start"][own], rows["end"][own]
            out.append(Pass(kind, tuple(own.tolist()), int(start.min()), int(end.max()), int((end - start).sum())))
    return out


def _stages(spans: Spans, passes: Mapping[int, list[Pass]], ends: set[int]) -> dict[int, int]:
    """Returns rank -> stage. Replicas of a stage are assumed to begin next to each other."""
    replicas = len(ends) // 2
    first = {rank for rank in ends if passes[rank][0].end <= _first_arrival(spans[rank])}
    if len(first) != replicas or not all(passes[rank][0].forward for rank in spans):
        raise NotCounted("it is not one half of the outer ranks that computes before anything arrives")
    middle = sorted(set(spans) - ends, key=lambda rank: passes[rank][0].start)
    order = [*sorted(first), *middle, *sorted(ends - first)]
    return {rank: at // replicas for at, rank in enumerate(order)}


def _require_in_time(passes: Mapping[int, list[Pass]], stages: Mapping[int, int]) -> None:
    """Checks that forwards go down the stages and backwards up; clocks may differ by a constant offset."""
    if len(set(stages.values())) < len(stages):
        return  # which replicas belong together is not known
    ranks = sorted(stages, key=lambda rank: stages[rank])
    for ahead, behind in pairwise(ranks):
        down = max(a.end - b.start for a, b in zip(_of(passes[ahead], True), _of(passes[behind], True), strict=True))
        up = min(a.start - b.end for a, b in zip(_of(passes[ahead], False), _of(passes[behind], False), strict=True))
        if down > up:
            raise NotCounted(f"rank {behind} would be ahead of rank {ahead} with some micro-batch")


def _of(passes: list[Pass], forward: bool) -> list[Pass]:
    return [one for one in passes if one.forward is forward]


def _first_arrival(rows: NDArray[np.void]) -> int:
    return int(rows["end"][np.isin(rows["kind"], _RECVS)].min())


def _named(rows: NDArray[np.void], passes: list[Pass], stage: int) -> NDArray[np.void]:
    out = rows.copy()
    numbered = [
        (i, piece)
        for forward in (False, True)
        for i, piece in enumerate(own for own in passes if own.forward is forward)
    ]
    for i, piece in numbered:
        chosen = np.array(piece.rows)
        out["stage"][chosen], out["micro_batch"][chosen] = stage, i
    for i, piece in numbered:
        take_crumbs(out, np.array(piece.rows), Kind.F if piece.forward else Kind.BW, stage, i)
    _messages(out, passes, stage)
    return out


def _messages(rows: NDArray[np.void], passes: list[Pass], stage: int) -> None:
    """Assigns a send to the operation that ended last before it, a receive to the first operation after it."""
    starts, done = np.array([one.start for one in passes]), np.array([one.end for one in passes])
    numbers = [int(rows["micro_batch"][one.rows[0]]) for one in passes]
    for i in np.flatnonzero(np.isin(rows["kind"], _SENDS + _RECVS)).tolist():
        send = int(rows["kind"][i]) in _SENDS
        at = np.searchsorted(done, rows["start"][i], "right") - 1 if send else np.searchsorted(starts, rows["end"][i])
        if not 0 <= at < len(passes):
            continue
        kinds = (Kind.SEND_ACT, Kind.SEND_GRAD) if send else (Kind.RECV_ACT, Kind.RECV_GRAD)
        rows["kind"][i] = kinds[0] if passes[at].forward else kinds[1]
        rows["stage"][i], rows["micro_batch"][i] = stage, numbers[at]
