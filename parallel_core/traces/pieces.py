"""Separates the forwards and backwards of a rank in a pipeline without annotations, and ignores fragments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.rows import durations, starts
from parallel_core.schedule.ir import P2P, Kind, Op

CRUMB = 1 / 3
"""Work shorter than this fraction of a rank's typical forward (or backward) is not one, but a fragment: a buffer, or
clean-up. A short one counts as typical: other processes delay some operations, but nothing makes one faster."""
USUAL = 0.1
"""The quantile of lengths that counts as a short one."""
NEAR = 0.35
"""Fraction of an operation's rows: how far from its expected end the gap after it is searched."""
FORWARD, BACKWARD = (Kind.F,), (Kind.BW, Kind.B, Kind.W, Kind.R)
"""The kinds that count as a forward, and as a backward: with the recomputation for it."""


class Piece(NamedTuple):
    """Forwards, or backwards, between which no message begins; `busy`: ns of work."""

    forward: bool
    rows: NDArray[np.int64]
    start: int
    busy: int


def forwards_between_messages(rows: NDArray[np.void]) -> list[tuple[int, int, int]]:
    """(start, busy ns, number of rows) of the forwards of a rank, separated where a message begins."""
    begun = np.sort(rows["start"][np.isin(rows["kind"], [int(kind) for kind in P2P])])
    own = rows[np.isin(rows["kind"], [int(kind) for kind in FORWARD])]
    window = np.searchsorted(begun, own["start"], side="right")
    took = durations(own)
    parts = [window == between for between in np.unique(window)]
    return [(int(own["start"][part].min()), int(took[part].sum()), int(part.sum())) for part in parts]


def stretches(rows: NDArray[np.void], usual: Mapping[bool, tuple[float, float]]) -> list[Piece]:
    """Returns the alternating forwards and backwards of a rank, separated where a message begins, without fragments.

    A fragment does not separate the work around it: the backward's thread cleans up after each node.
    """
    forward = np.isin(rows["kind"], [int(kind) for kind in FORWARD])
    backward = np.isin(rows["kind"], [int(kind) for kind in BACKWARD])
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
    """Returns (ns, rows) of a typical one of the shortest operations, if `groups` are between the sends that begin at
    `begun`.

    The total of a group determines the length of one operation, however its rows are separated.
    """
    own = rows[np.isin(rows["kind"], [int(kind) for kind in (FORWARD if forward else BACKWARD)])]
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
    """The weight of an operation by its length: a whole backward counts as two halves of equal length."""
    return 1 + (op.kind is Kind.BW)


def parted(rows: NDArray[np.void], piece: NDArray[np.int64], ops: Sequence[Op]) -> list[NDArray[np.int64]] | None:
    """Splits the rows into one part per operation; None where there are too few.

    The cuts are at the longest gaps near to where operations of equal work would end, with a whole backward counting
    twice.
    """
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
    """Returns when the fraction `share` of a rank's forwards has begun, not counting those too short to be one."""
    pieces = sorted(forwards_between_messages(rows))
    longer = sorted(ns for _, ns, _ in pieces)[len(pieces) // 2 :]
    floor = CRUMB * float(np.quantile(longer, USUAL)) if longer else 0
    starts = [start for start, ns, _ in pieces if ns >= floor]
    return starts[int(share * len(starts))] if starts else 1 << 62


def take_crumbs(rows: NDArray[np.void], inside: NDArray[np.int64], kind: Kind, stage: int, micro_batch: int) -> None:
    """Adds unnamed work between the first and the last row of an operation (`inside`) to that operation."""
    low, high = rows["start"][inside].min(), rows["end"][inside].max()
    work = np.isin(rows["kind"], [int(one) for one in (*FORWARD, *BACKWARD)]) & (rows["micro_batch"] < 0)
    crumbs = work & (rows["start"] >= low) & (rows["end"] <= high)
    rows["kind"][crumbs], rows["stage"][crumbs], rows["micro_batch"][crumbs] = kind, stage, micro_batch
