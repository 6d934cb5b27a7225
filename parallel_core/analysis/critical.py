"""The critical path of a step: the chain of operations and messages whose lengths add up to it.

It is walked backwards from the last instant of the step. An operation starts after the previous one on its rank, except
where it waited: a RECV for the sending rank (from the time that the SEND began, which may be before the RECV's own:
the message was under way then), a collective for the last rank to arrive (`waits`). Speeding up anything off the path
leaves the step as long as it is.

Spans inside others (R, collectives INSIDE, a PAIR around its halves) and collectives in flight are not links of the
chain, so a wait inside such a collective counts to the operation that contains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis import waits
from parallel_core.analysis.rows import durations
from parallel_core.analysis.sweep import Times
from parallel_core.layout import Layout
from parallel_core.schedule.ir import FLIGHTS, INSIDE, RECVS, Kind

LINK = np.dtype([("rank", "<i4"), ("row", "<i8"), ("kind", "u1"), ("start", "<i8"), ("end", "<i8")])
"""One link of the path: the rank, the span's index among the rank's SPAN rows as given, and the interval during which
it held the step up (ns on the span clock)."""

_ABSENT = INSIDE | FLIGHTS | {Kind.STEP, Kind.R, Kind.PAIR}


class _Nodes(NamedTuple):
    """All possible links, rank after rank in order of their end. `before`: the link from which the walk continues, at
    most at time `until`; -1 where it ends."""

    rank: NDArray[np.int32]
    row: Times
    kind: NDArray[np.uint8]
    end: Times
    before: Times
    until: Times


def critical_path(spans: Mapping[int, NDArray[np.void]], layout: Layout) -> NDArray[np.void]:
    """LINK rows in time order without gaps, from the first instant of the step to its last."""
    if not any(len(table) for table in spans.values()):
        return np.empty(0, LINK)
    nodes = _nodes(spans, layout)
    if not len(nodes.end):
        return np.empty(0, LINK)
    own = [table for table in spans.values() if len(table)]
    window = min(int(table["start"].min()) for table in own), max(int(table["end"].max()) for table in own)
    found = _walk(nodes, window)
    out = np.zeros(len(found), LINK)
    chosen = np.array([node for node, _, _ in found], np.int64)
    out["rank"], out["row"], out["kind"] = nodes.rank[chosen], nodes.row[chosen], nodes.kind[chosen]
    out["start"], out["end"] = [start for _, start, _ in found], [end for _, _, end in found]
    return out[durations(out) > 0]


def _walk(nodes: _Nodes, window: tuple[int, int]) -> list[tuple[int, int, int]]:
    """(node, from, to) in time order; plain lists, because single steps are slow in arrays."""
    before, until = nodes.before.tolist(), nodes.until.tolist()
    begin, at = window
    node, out = int(nodes.end.argmax()), []
    for _ in range(len(before)):  # bounded: clock skew could lead to a cycle
        start = min(at, until[node]) if before[node] >= 0 else begin
        out.append((node, start, at))
        node, at = before[node], start
        if node < 0:
            break
    node, start, end = out[-1]
    out[-1] = (node, min(begin, start), end)
    return out[::-1]


def _nodes(spans: Mapping[int, NDArray[np.void]], layout: Layout) -> _Nodes:
    order = {rank: np.argsort(table["start"], kind="stable") for rank, table in spans.items()}
    rows = {rank: table[order[rank]] for rank, table in spans.items()}
    arrivals, sends = waits.arrivals(rows, layout), waits.awaited_sends(rows, layout)
    sent = {rank: waits.received(rank, table, layout, sends) for rank, table in rows.items()}
    usual = _usual(rows, sent)
    ends: dict[int, Times] = {}
    first: dict[int, int] = {}
    parts, count = [], 0
    for rank, table in rows.items():
        keep = np.flatnonzero(~np.isin(table["kind"], [int(kind) for kind in _ABSENT]))
        keep = keep[np.argsort(table["end"][keep], kind="stable")]
        at, who = _causes(rank, table, arrivals, sent[rank], usual)
        parts.append((np.full(len(keep), rank, np.int32), order[rank][keep], table[keep], at[keep], who[keep]))
        ends[rank], first[rank] = table["end"][keep], count
        count += len(keep)
    ranks, row, table, at, who = (np.concatenate(column) for column in zip(*parts, strict=True))
    before = np.arange(count) - 1
    before[[at for at in first.values() if at < count]] = -1
    until = np.where(before >= 0, table["end"][before], 0)
    for rank, own in ends.items():
        here = who == rank
        before[here] = first[rank] + np.searchsorted(own, at[here], side="right") - 1
        before[here & (before < first[rank])] = -1
        until[here] = at[here]
    return _Nodes(ranks, row, table["kind"], table["end"], before, until)


class _Usual(NamedTuple):
    """Median nanoseconds of a message that was waited for, from its SEND on, and of a RECV whose message was there."""

    latency: float
    handling: float


def _usual(rows: waits.Rows, sent: Mapping[int, waits.Causes]) -> _Usual:
    latency, found = waits.usual_latency(rows, sent), [np.empty(0)]
    for rank, own in rows.items():
        receives = waits.of_kinds(own, *RECVS)
        found.append(durations(receives)[sent[rank].at + latency <= receives["start"]])
    there = np.concatenate(found)
    return _Usual(latency, float(np.median(there)) if there.size else 0.0)


def _causes(
    rank: int,
    rows: NDArray[np.void],
    arrivals: Mapping[tuple[int, Kind], waits.Causes],
    received: waits.Causes,
    usual: _Usual,
) -> tuple[Times, Times]:
    """For each row: the time at which another rank let it go on, and that rank; -1 if none did.

    A message is waited for, too, if it was under way when its RECV began: sent no longer ago than messages usually
    take, by a RECV that takes longer than those (by as much again) whose message is there."""
    at, who = np.zeros(len(rows), np.int64), np.full(len(rows), -1, np.int64)
    for kind in (kind for other, kind in arrivals if other == rank):
        here, causes = rows["kind"] == kind, arrivals[rank, kind]
        late = causes.at > rows["start"][here]
        at[here], who[here] = causes.at, np.where(late & (causes.ranks != rank), causes.ranks, -1)
    here = waits.among(rows, RECVS)
    own = rows[here]
    late = (received.at + usual.latency > own["start"]) & (durations(own) > 2 * usual.handling)
    late |= received.at > own["start"]
    at[here], who[here] = received.at, np.where(late & (received.ranks != rank), received.ranks, -1)
    return at, who
