"""Who waited for whom: receives joined with their sends, collectives with the last rank to arrive.

The k-th collective of a kind on one rank is the k-th on every rank of its group: the tensor group (TP_COLLECTIVE), the
replicas of the stage (ALLREDUCE and the like, UNSHARD, BUCKET_WAIT, STATISTICS), all ranks (NORM). A rank arrives where
its span starts; at a collective behind computation, where the flight before it does (`FLIGHT`). A RECV is matched by
stage, micro-batch and the tensor coordinate of the sender. `rows` are SPAN rows of each global rank in order of their
start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.rows import by_start
from parallel_core.analysis.sweep import Pieces, Times
from parallel_core.layout import Layout
from parallel_core.schedule.ir import COMPUTE, FLIGHT, INSIDE, RECVS, REPLICA_COLLECTIVES, SENDS, Kind

Rows = Mapping[int, NDArray[np.void]]
Ranks = NDArray[np.int64]

BLOCKING = (*sorted(INSIDE), *sorted(REPLICA_COLLECTIVES), Kind.NORM)
"""Collectives that block a rank until all have arrived."""
DONE = (*sorted(COMPUTE), Kind.R, Kind.OPT_STEP, Kind.DATA, *BLOCKING)
"""Operations that a rank runs itself or blocks in: it did not start them while it waited for anything else."""


class Causes(NamedTuple):
    """For each waiting span: when what it waited for happened, and on which rank (-1 if unknown)."""

    at: Times
    ranks: Ranks


def ordered(spans: Rows) -> dict[int, NDArray[np.void]]:
    """The same rows in order of their start."""
    return {rank: by_start(table) for rank, table in spans.items()}


def step_start(spans: Rows) -> int:
    """The first instant of the step, on the span clock; 0 without any span."""
    return min((int(rows["start"].min()) for rows in spans.values() if len(rows)), default=0)


def among(rows: NDArray[np.void], kinds: Iterable[Kind]) -> NDArray[np.bool_]:
    """Mask of the rows of these kinds; the look-up table is several times as fast as `np.isin`."""
    chosen = np.zeros(256, np.bool_)
    chosen[[int(kind) for kind in kinds]] = True
    return chosen[rows["kind"]]


def of_kinds(rows: NDArray[np.void], *kinds: Kind) -> NDArray[np.void]:
    """The rows of these kinds."""
    return rows[among(rows, kinds)]


def pieces(rows: NDArray[np.void], *kinds: Kind) -> Pieces:
    """(starts, ends) of the rows of these kinds: twice as fast as via whole rows."""
    chosen = among(rows, kinds)
    return rows["start"][chosen], rows["end"][chosen]


def gathers_aside(spans: Rows) -> bool:
    """Whether layers' parameters were gathered only on streams of their own, as `engine.fully_sharded` does on CUDA: a
    rank's waits for them are then within its operations, and nothing tells them from work."""
    return _any(spans, Kind.UNSHARD_FLIGHT) and not _any(spans, Kind.UNSHARD)


def _any(spans: Rows, kind: Kind) -> bool:
    return any(bool((rows["kind"] == kind).any()) for rows in spans.values())


def stands_from(rows: NDArray[np.void], messages: NDArray[np.void]) -> Times:
    """Since when a rank is blocked in each of its messages: the end of the last of its own operations that started
    before the message's end."""
    starts, ends = pieces(rows, *DONE)
    begun, over = messages["start"], messages["end"]
    if not len(starts):
        return begun
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    last = np.searchsorted(starts, over, side="left") - 1
    busy = np.where(last < 0, begun, np.maximum.accumulate(ends)[np.maximum(last, 0)])
    return np.clip(busy, begun, np.maximum(begun, over))


def arrivals(rows: Rows, layout: Layout) -> dict[tuple[int, Kind], Causes]:
    """(rank, kind) -> the last arrival at each of the rank's collectives; groups of one have no entry."""
    out: dict[tuple[int, Kind], Causes] = {}
    for kind in BLOCKING:
        for group in groups(kind, layout):
            if len(group) == 1:
                continue
            starts = {rank: _came(rows[rank], kind) for rank in group if rank in rows}
            if starts:
                out |= {(rank, kind): causes for rank, causes in _last(starts).items()}
    return out


def _came(rows: NDArray[np.void], kind: Kind) -> Times:
    """When a rank came to each of its collectives of this kind."""
    starts: Times = of_kinds(rows, kind)["start"]
    flights = of_kinds(rows, FLIGHT[kind]) if kind in FLIGHT else rows[:0]
    if not len(flights):
        return starts
    flights = flights[np.argsort(flights["end"], kind="stable")]
    at = np.minimum(np.searchsorted(flights["end"], starts), len(flights) - 1)
    return np.where(flights["end"][at] == starts, flights["start"][at], starts)


def _last(starts: Mapping[int, Times]) -> dict[int, Causes]:
    """Causes for the ranks of one group; collectives that not all ranks have wait for nobody."""
    common = min(map(len, starts.values()))
    table, ranks = np.array([own[:common] for own in starts.values()]), np.array(list(starts))
    at, who = table.max(axis=0), ranks[table.argmax(axis=0)]
    return {
        rank: Causes(
            np.concatenate([at, own[common:]]), np.concatenate([who, np.full(len(own) - common, -1, np.int64)])
        )
        for rank, own in starts.items()
    }


def blocked_in(rank: int, layout: Layout) -> tuple[Kind, ...]:
    """The BLOCKING kinds in which the rank meets others: its groups of more than one rank."""
    return tuple(kind for kind in BLOCKING if any(rank in group and len(group) > 1 for group in groups(kind, layout)))


def groups(kind: Kind, layout: Layout) -> Sequence[Sequence[int]]:
    """The groups of global ranks that take part in collectives of a BLOCKING kind."""
    if kind is Kind.TP_COLLECTIVE:
        return layout.tensor_groups()
    return [range(layout.world)] if kind is Kind.NORM else layout.data_groups()


class Sends(NamedTuple):
    """Messages sorted by `keys`, then by when each send began (`starts`); `ranks` = the senders."""

    keys: Times
    starts: Times
    ranks: Ranks


def sends(rows: Rows, layout: Layout) -> Sends:
    """All messages of the step."""
    parts = [Sends(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))]
    for rank, table in rows.items():
        own = of_kinds(table, *SENDS)
        keys = _message(own, layout.coords(rank).tensor, sending=True)
        parts.append(Sends(keys, own["start"], np.full(len(own), rank, np.int64)))
    joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.lexsort((joined[1], joined[0]))
    return Sends(*(column[order] for column in joined))


def awaited_sends(rows: Rows, layout: Layout) -> Sends:
    """As `sends`; in a pipeline that never flushes also what the step before had sent for micro-batches of this one.

    That was as long before the same message of this step, for the next one, as the step took: while the pipeline is
    full, steps are the same (schedule.stream). In the last steps of a stream, in which it drains, less or nothing is
    sent for the next one, so that such a message remains unknown: of the waiting for it, nothing counts as bubble.
    """
    if layout.flushes:
        return sends(rows, layout)
    joined = {}
    for rank, table in rows.items():
        if len(table):
            begin, end = window(table)
            before = sent_before(of_kinds(table, *SENDS), layout.micro_batches, end - begin)
            joined[rank] = np.concatenate([table, before])
    return sends(joined, layout)


def sent_before(given: NDArray[np.void], per_step: int, took: Times | int) -> NDArray[np.void]:
    """The sends of the step before whose messages are received in this one, from the sends `given` of this step, which
    `took` so many ns; micro-batches are numbered from the first of this step, which has `per_step`."""
    out = given.copy()
    for side in ("start", "end"):
        out[side] -= took
    out["micro_batch"] -= per_step
    return out[out["micro_batch"] >= 0]


def window(rows: NDArray[np.void]) -> tuple[int, int]:
    """Start and end of a step of one rank: of its span STEP, without one from its first span to its last."""
    step = rows[rows["kind"] == Kind.STEP]
    bounds = step if len(step) else rows
    return int(bounds["start"].min()), int(bounds["end"].max())


def received(rank: int, rows: NDArray[np.void], layout: Layout, every: Sends) -> Causes:
    """The send of each of the rank's receives; if missing, the receive's own start and rank -1.

    Replicas of an imported job, which number their micro-batches alike, send messages that look the same. Of these the
    last one is taken that was sent before the receive ended.
    """
    own, (keys, starts, ranks) = of_kinds(rows, *RECVS), every
    if not len(keys):
        return Causes(own["start"], np.full(len(own), -1, np.int64))
    wanted = _message(own, _givers(rank, own, layout), sending=False)
    first, behind = np.searchsorted(keys, wanted), np.searchsorted(keys, wanted, side="right")
    at = np.minimum(first, len(keys) - 1)
    for i in np.flatnonzero(behind - first > 1):
        at[i] += max(0, int(np.searchsorted(starts[first[i] : behind[i]], own["end"][i], side="right")) - 1)
    known = keys[at] == wanted
    return Causes(np.where(known, starts[at], own["start"]), np.where(known, ranks[at], -1))


def usual_latency(rows: Rows, sent: Mapping[int, Causes]) -> float:
    """Median time from a SEND to the end of its RECV, over RECVs that were already waiting; 0 without any. `sent`: of
    each rank what `received` gives for its `rows`."""
    found = [np.empty(0)]
    for rank, own in rows.items():
        receives, (at, ranks) = of_kinds(own, *RECVS), sent[rank]
        waiting = (at >= receives["start"]) & (ranks >= 0)
        found.append(receives["end"][waiting] - at[waiting])
    joined = np.concatenate(found)
    return max(float(np.median(joined)), 0.0) if joined.size else 0.0


def _givers(rank: int, receives: NDArray[np.void], layout: Layout) -> Times | int:
    """Tensor coordinates of the ranks that sent to `rank` (`Layout.sender`)."""
    tensor = layout.coords(rank).tensor
    if len(set(layout.widths)) == 1:
        return tensor
    widths = np.array([layout.widths[place] for place in layout.places])
    sender = receives["stage"].astype(np.int64) + np.where(receives["kind"] == Kind.RECV_ACT, -1, 1)
    return tensor % widths[np.clip(sender, 0, layout.stages - 1)]


def _message(rows: NDArray[np.void], sender: Times | int, sending: bool) -> Times:
    """An integer key of a message, equal at both ends: direction, sender's tensor coordinate, receiver, micro-batch."""
    kind, stage = rows["kind"].astype(np.int64), rows["stage"].astype(np.int64)
    forward = (kind == Kind.SEND_ACT) | (kind == Kind.RECV_ACT)
    target = stage + np.where(forward, 1, -1) * sending
    return (forward.astype(np.int64) << 62) + (sender << 48) + ((target + 1) << 32) + rows["micro_batch"]


class Waited(NamedTuple):
    """For each row as given: nanoseconds blocked in it by another rank, when that ended, and the rank (-1: unknown)."""

    ns: Times
    until: Times
    ranks: Ranks


def waited_if_whole(spans: Rows, layout: Layout | None) -> dict[int, Waited]:
    """`waited`; {} if a rank or the layout is missing, since the last rank to arrive is unknown then."""
    return waited(spans, layout) if layout is not None and len(spans) == layout.world else {}


def waited(spans: Rows, layout: Layout, met: Mapping[int, Causes] | None = None) -> dict[int, Waited]:
    """Waits of every rank, with its rows in any order; `met`: the last arrival at each BUCKET of a rank by start, where
    those of an imported trace are known (`meetings.last_to_come`)."""
    order = {rank: np.argsort(table["start"], kind="stable") for rank, table in spans.items()}
    rows = {rank: table[order[rank]] for rank, table in spans.items()}
    came, sent = arrivals(rows, layout), awaited_sends(rows, layout)
    out = {}
    for rank, own in rows.items():
        ns, who, until = np.zeros(len(own), np.int64), np.full(len(own), -1, np.int64), own["start"].copy()
        found = [((kind,), came[rank, kind]) for kind in BLOCKING if (rank, kind) in came]
        found += [((Kind.BUCKET,), met[rank])] if met and rank in met else []
        for kinds, causes in [*found, (tuple(RECVS), received(rank, own, layout, sent))]:
            here = among(own, kinds)
            end = own["end"][here]
            start = stands_from(own, own[here]) if kinds == tuple(RECVS) else own["start"][here]
            until[here] = np.clip(causes.at, start, np.maximum(start, end))
            ns[here] = until[here] - start
            who[here] = np.where(ns[here] > 0, causes.ranks, -1)
        back = np.empty(len(own), np.int64)
        back[order[rank]] = np.arange(len(own))
        out[rank] = Waited(ns[back], until[back], who[back])
    return out
