"""Intervals with an order of precedence -> the owner of each instant, in one pass over their sorted ends.

Everything is integer nanoseconds. For any intervals, the lengths of the segments add up to the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
Pieces = tuple[Times, Times]
"""Starts and ends of intervals, any order, overlaps allowed."""

NO_OWNER = -1
"""Owner of an instant that no interval covers."""


class Segments(NamedTuple):
    """The window cut at every start and end, n segments in order; some may be empty."""

    starts: Times
    lengths: Times
    owner: NDArray[np.int8]
    """Index of the first layer that covers the segment, or NO_OWNER."""
    active: NDArray[np.bool_]
    """(layers, n): whether the layer covers the segment at all."""

    def time(self, chosen: NDArray[np.bool_]) -> int:
        """Nanoseconds of the segments where `chosen`."""
        return int(self.lengths[chosen].sum())

    def owned(self) -> list[int]:
        """Nanoseconds of each layer, then of no layer; exact: float64 holds whole numbers up to 2^53, i.e. 104 days."""
        layers = len(self.active)
        sums = np.bincount(self.owner + np.int8(1), weights=self.lengths, minlength=layers + 1)  # NO_OWNER first
        return [int(ns) for ns in (*sums[1:], sums[0])]

    def owned_by(self, layers: Iterable[int]) -> NDArray[np.bool_]:
        """Which segments one of these layers owns."""
        chosen = np.zeros(len(self.active) + 1, np.bool_)
        chosen[list(layers)] = True
        out: NDArray[np.bool_] = chosen[self.owner]
        return out


def sweep(layers: Sequence[Pieces], window: tuple[int, int], cuts: Iterable[int] = ()) -> Segments:
    """Segments of `window`, cut at the ends of all (clipped) intervals and at `cuts`; the first layer has
    precedence."""
    clipped = [(np.clip(starts, *window), np.clip(np.maximum(starts, ends), *window)) for starts, ends in layers]
    marks = np.clip(np.array([*window, *cuts], np.int64), *window)
    points = np.concatenate([marks, *(side for pieces in clipped for side in pieces)])
    order = np.argsort(points, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    active = np.zeros((len(layers), len(points) - 1), np.bool_)
    owner = np.full(len(points) - 1, NO_OWNER, np.int8)
    at = len(marks)
    for i, (starts, _) in enumerate(clipped):
        if not len(starts):
            continue
        change = np.zeros(len(points), np.int32)
        change[place[at : at + len(starts)]] = 1
        change[place[at + len(starts) : at + 2 * len(starts)]] = -1
        at += 2 * len(starts)
        np.greater(np.cumsum(change, dtype=np.int32)[:-1], 0, out=active[i])
        owner[active[i] & (owner == NO_OWNER)] = i
    points = points[order]
    return Segments(points[:-1], np.diff(points), owner, active)
