"""The ways of the messages between the places of a pipeline, by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

LinkKind = tuple[bool, bool]
"""(to a higher pipeline rank?, activations?)"""
FORTH: LinkKind = (True, True)
"""Activations on a line: to the next stage."""
BACK: LinkKind = (False, False)
"""Gradients on a line: to the previous stage."""

Ways = Mapping[LinkKind, tuple[tuple[int, int], ...]]
"""Kind of messages -> (sending place, receiving place), ascending."""


def ways(places: Sequence[int]) -> Ways:
    """Returns the ways of a pipeline whose stages are at `places`, without kinds that it has no messages of.

    Activations go to the next stage, gradients back: two kinds on a line, four in a loop or a V.
    """
    hops = {(here, there) for here, there in pairwise(places) if here != there}
    found: dict[LinkKind, tuple[tuple[int, int], ...]] = {}
    for activations in (True, False):
        edges = sorted(hops if activations else {(there, here) for here, there in hops})
        for up in (activations, not activations):
            if of_kind := tuple(edge for edge in edges if (edge[0] < edge[1]) == up):
                found[up, activations] = of_kind
    return found
