"""Cuts a long step into many equal bins once, so that any wide part of it can be shown without its spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.sweep import NO_OWNER, Pieces, sweep

Floats = NDArray[np.float64]


class Bins(NamedTuple):
    """`edges`: n + 1 times, ns. `reached`: (layers + 1, n + 1) ns owned by each layer up to each edge; the last row
    belongs to no layer. What a layer owns between two edges is a difference, so merged bins are exact."""

    edges: Floats
    reached: Floats

    def between(self, low: float, high: float, most: int) -> tuple[Floats, Floats] | None:
        """(edges, shares by layer and bin) of at most `most` bins that cover `low` to `high` (ns).

        None if fewer than `most` bins lie in between: such a narrow part needs its spans.
        """
        first = max(0, int(np.searchsorted(self.edges, low, "right")) - 1)
        last = min(len(self.edges) - 1, int(np.searchsorted(self.edges, high, "left")))
        if last - first < most:
            return None
        width = -(-(last - first) // most)
        at = np.minimum(np.arange(first, last + width, width), len(self.edges) - 1)
        edges = self.edges[at]
        return edges, np.diff(self.reached[:, at]) / np.diff(edges)


def bins(layers: Sequence[Pieces], edges: Floats) -> Bins:
    """Bins of intervals by precedence, the first layer first (see `sweep`); `edges` ascending, ns."""
    bounds = int(edges[0]), int(np.ceil(edges[-1]))
    found = sweep(layers, bounds)
    at = np.clip(np.searchsorted(found.starts, edges, side="right") - 1, 0, len(found.starts) - 1)
    within = np.minimum(edges - found.starts[at], found.lengths[at])  # ns of the segment before the edge inside it
    reached = np.zeros((len(layers) + 1, len(edges)))
    for i, owned in enumerate(found.owned()):
        if owned:
            mine = found.owner == (i if i < len(layers) else NO_OWNER)
            lengths = np.where(mine, found.lengths, 0)
            reached[i] = (np.cumsum(lengths) - lengths)[at] + np.where(mine[at], within, 0)
    return Bins(edges, reached)
