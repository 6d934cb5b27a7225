"""Finds the markers that enclose a moment: markers of one thread nest, as calls do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
NONE = -1


def parents(starts: Times, ends: Times) -> Times:
    """Returns the index of the marker around each marker, NONE for outermost ones. Input: sorted by start, the longest
    first."""
    out = np.full(len(starts), NONE, np.int64)
    stack: list[int] = []
    begin, end = starts.tolist(), ends.tolist()
    for i, start in enumerate(begin):
        while stack and end[stack[-1]] <= start:
            stack.pop()
        if stack:
            out[i] = stack[-1]
        stack.append(i)
    return out


def innermost(starts: Times, ends: Times, above: Times, moments: Times) -> Times:
    """Returns the index of the innermost marker around each moment, NONE without one. `above` = `parents(...)`."""
    if not len(starts):
        return np.full(len(moments), NONE, np.int64)
    found = np.searchsorted(starts, moments, side="right") - 1
    while True:
        over = (found >= 0) & (ends[found] <= moments)
        if not over.any():
            return found
        found[over] = above[found[over]]


def outermost(starts: Times, ends: Times) -> NDArray[np.bool_]:
    """Returns which intervals lie in no other. Input: sorted by start, the longest first."""
    if not len(starts):
        return np.zeros(0, np.bool_)
    reach = np.maximum.accumulate(ends)
    return np.concatenate([[True], starts[1:] >= reach[:-1]])


def outermost_of(events: NDArray[np.void], chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which of the chosen events lie in no other chosen event on their thread. Events are sorted as in `parents`."""
    keep = np.zeros(len(events), np.bool_)
    for thread in np.unique(events["thread"][chosen]):
        mine = np.flatnonzero(chosen & (events["thread"] == thread))
        keep[mine[outermost(events["start"][mine], events["end"][mine])]] = True
    return keep


def within(events: NDArray[np.void], outer: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns which events begin inside one of the `outer` events of their thread, and are not `outer` themselves."""
    out = np.zeros(len(events), np.bool_)
    widest = outermost_of(events, outer)
    for thread in np.unique(events["thread"][widest]):
        own, here = events[widest & (events["thread"] == thread)], np.flatnonzero(events["thread"] == thread)
        at = np.searchsorted(own["start"], events["start"][here], side="right") - 1
        out[here] = (at >= 0) & (events["start"][here] < own["end"][at])
    return out & ~outer


def holding(events: NDArray[np.void], inner: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns which events contain one of the `inner` events on their thread, other than themselves."""
    out = np.zeros(len(events), np.bool_)
    for thread in np.unique(events["thread"][inner]):
        here = np.flatnonzero(events["thread"] == thread)
        begun = events["start"][here[inner[here]]]
        low = np.searchsorted(begun, events["start"][here], side="left")
        out[here] = np.searchsorted(begun, events["end"][here], side="left") - low > inner[here]
    return out


def crossing(events: NDArray[np.void], slack: int) -> int:
    """Returns how many events begin inside another of their thread and end after it, both by more than `slack` ns.

    Since calls nest, the times of such events are wrong. Events are sorted as in `parents`.
    """
    found = 0
    for thread in np.unique(events["thread"]):
        own = events[events["thread"] == thread]
        reach = np.maximum.accumulate(own["end"])[:-1]
        found += int(((own["start"][1:] + slack < reach) & (own["end"][1:] > reach + slack)).sum())
    return found
