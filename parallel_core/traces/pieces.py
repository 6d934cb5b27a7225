"""What one rank of a pipeline that nothing annotates did: forwards and backwards between messages, without crumbs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.rows import durations, starts
from parallel_core.schedule.ir import P2P, Kind, Op

CRUMB = 1 / 3
"""What takes less than so much of a rank's usual forward (or backward) is none: a buffer, a clean-up behind one.
Usual is a short one: other processes hold up some operations, and none is done faster than it can be."""
USUAL = 0.1
"""The quantile of lengths that is a short one."""
NEAR = 0.35
"""Of an operation's rows: so far from where it would end is looked for the pause behind it."""
_FORWARD, _BACKWARD = (Kind.F,), (Kind.BW, Kind.B, Kind.W, Kind.R)


class Piece(NamedTuple):
    """Forwards, or backwards, with no message begun between them; `busy` ns of work."""

    forward: bool
    rows: NDArray[np.int64]
    start: int
    busy: int


def between_messages(rows: NDArray[np.void], forward: bool) -> list[tuple[int, int, int]]:
    """(start, busy ns, rows) of the forwards (backwards) of a rank, parted where a message begins."""
    begun = np.sort(rows["start"][np.isin(rows["kind"], [int(kind) for kind in P2P])])
    own = rows[np.isin(rows["kind"], [int(kind) for kind in (_FORWARD if forward else _BACKWARD)])]
    window = np.searchsorted(begun, own["start"], side="right")
    took = durations(own)
    parts = [window == between for between in np.unique(window)]
    return [(int(own["start"][part].min()), int(took[part].sum()), int(part.sum())) for part in parts]


def stretches(rows: NDArray[np.void], usual: Mapping[bool, tuple[float, float]]) -> list[Piece]:
    """The forwards and backwards of a rank as they alternate, parted where a message begins; without crumbs, which do
    not part what they stand in (behind each node of a backward its thread tidies up)."""
    forward = np.isin(rows["kind"], [int(kind) for kind in _FORWARD])
    backward = np.isin(rows["kind"], [int(kind) for kind in _BACKWARD])
    begun = np.sort(rows["start"][np.isin(rows["kind"], [int(kind) for kind in P2P])])
    own = np.flatnonzero(forward | backward)
    own = own[np.argsort(rows["start"][own], kind="stable")]
    took, window = durations(rows), np.searchsorted(begun, starts(rows), side="right")
    for crumbs in (True, False):
        change = (np.diff(forward[own]) != 0) | (np.diff(window[own]) != 0)
        alternating = np.split(own, np.flatnonzero(change) + 1)
        ns, count = (CRUMB * one for one in usual[crumbs])
        kept = [p for p in alternating if forward[p[0]] != crumbs or (took[p].sum() >= ns and len(p) >= count)]
        own = np.concatenate([own[:0], *kept])
    change = (np.diff(forward[own]) != 0) | (np.diff(window[own]) != 0)
    parts = np.split(own, np.flatnonzero(change) + 1) if len(own) else []
    return [Piece(bool(forward[part[0]]), part, int(rows["start"][part[0]]), int(took[part].sum())) for part in parts]


def usual_length(
    rows: NDArray[np.void], begun: Sequence[int], groups: Sequence[Sequence[Op]], forward: bool
) -> tuple[float, float]:
    """(ns, rows) of a usual one of the shortest operations, if `groups` stand between the sends that begin at `begun`.
    What all of a group takes tells of one, however its rows are parted."""
    own = rows[np.isin(rows["kind"], [int(kind) for kind in (_FORWARD if forward else _BACKWARD)])]
    at = np.searchsorted(begun, own["start"], side="right")
    parts = [[_weight(op) for op in ops if (op.kind is Kind.F) is forward] for ops in groups]
    each = np.array([sum(part) for part in parts])
    if not each.any():
        return 0.0, 0.0
    busy, sizes = (
        np.bincount(at, weights=of, minlength=len(each))[each > 0] / each[each > 0]
        for of in (durations(own), np.ones(len(own)))
    )
    shortest = min(weight for part in parts for weight in part)
    return float(np.quantile(busy, USUAL)) * shortest, float(np.quantile(sizes, USUAL)) * shortest


def _weight(op: Op) -> int:
    """Of a backward: both of its halves take as long."""
    return 1 + (op.kind is Kind.BW)


def parted(rows: NDArray[np.void], piece: NDArray[np.int64], ops: Sequence[Op]) -> list[NDArray[np.int64]] | None:
    """The same rows in a part for each operation: cut at the longest pause near to where equal work would end, a whole
    backward counting twice; None where there are too few."""
    if len(piece) < len(ops):
        return None
    reach = np.maximum.accumulate(rows["end"][piece])
    pauses = rows["start"][piece[1:]] - reach[:-1]
    weights = np.cumsum([_weight(op) for op in ops])
    edges = [0]
    for i, at in enumerate((weights[:-1] / weights[-1] * len(piece)).tolist(), start=1):
        near = NEAR * len(piece) / len(ops)
        low = max(edges[-1] + 1, math.ceil(at - near))
        high = max(low, min(len(piece) - (len(ops) - i), math.floor(at + near)))
        edges.append(low + int(np.argmax(pauses[low - 1 : high])))
    return np.split(piece, edges[1:])


def reached(rows: NDArray[np.void], share: float) -> int:
    """When so much of the forwards has begun, without what is none by its length."""
    pieces = sorted(between_messages(rows, forward=True))
    longer = sorted(ns for _, ns, _ in pieces)[len(pieces) // 2 :]
    floor = CRUMB * float(np.quantile(longer, USUAL)) if longer else 0
    starts = [start for start, ns, _ in pieces if ns >= floor]
    return starts[int(share * len(starts))] if starts else 1 << 62


def take_crumbs(rows: NDArray[np.void], inside: NDArray[np.int64], kind: Kind, stage: int, micro_batch: int) -> None:
    """What nothing names between the first and the last row of an operation (`inside`) is a part of it."""
    low, high = rows["start"][inside].min(), rows["end"][inside].max()
    work = np.isin(rows["kind"], [int(one) for one in (*_FORWARD, *_BACKWARD)]) & (rows["micro_batch"] < 0)
    crumbs = work & (rows["start"] >= low) & (rows["end"] <= high)
    rows["kind"][crumbs], rows["stage"][crumbs], rows["micro_batch"][crumbs] = kind, stage, micro_batch
