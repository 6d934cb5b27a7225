"""Which marker encloses which moment: markers of one thread nest, as calls do."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
NONE = -1


def parents(starts: Times, ends: Times) -> Times:
    """Index of the marker around each marker, NONE for outermost ones; sorted by start, the longer first."""
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
    """Index of the innermost marker around each moment, NONE where there is none. `above` = `parents(...)`."""
    if not len(starts):
        return np.full(len(moments), NONE, np.int64)
    found = np.searchsorted(starts, moments, side="right") - 1
    while True:
        over = (found >= 0) & (ends[found] <= moments)
        if not over.any():
            return found
        found[over] = above[found[over]]


def outermost(starts: Times, ends: Times) -> NDArray[np.bool_]:
    """Which intervals lie in no other; sorted by start, the longer first."""
    if not len(starts):
        return np.zeros(0, np.bool_)
    reach = np.maximum.accumulate(ends)
    return np.concatenate([[True], starts[1:] >= reach[:-1]])
