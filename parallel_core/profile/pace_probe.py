"""Measures the pace of a device during each of several consecutive passes, by doing the reference work between them.

A core of a shared host changes its pace within a second, so a mean over many passes says little about one of them;
the reference work right before and after it does.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from parallel_core.engine.collectives import Group, all_reduce
from parallel_core.observe.reference import Reference


class PaceProbe:
    """The pace of one rank's device; in a `group`, whose ranks wait for each other in every pass, that of the slowest
    rank."""

    def __init__(self, reference: Reference | None, group: Group = None) -> None:
        """`reference` None: all paces are 1."""
        self._reference, self._group = reference, group
        self._took: list[float] = []

    def begin(self) -> None:
        """Starts a series of passes: discards earlier measurements and does the reference work."""
        self._took.clear()
        self.measure()

    def measure(self) -> None:
        """Does the reference work; called after each pass."""
        if self._reference is not None:
            self._took.append(self._reference.timed_pass())

    def paces(self, passes: int) -> list[float]:
        """Returns the seconds of the reference work around each of the `passes` since `begin`; the ranks of a group
        make equally many."""
        if self._reference is None:
            return [1.0] * passes
        found = torch.tensor([(before + behind) / 2 for before, behind in pairwise(self._took)], dtype=torch.float64)
        if self._group is not None:
            found = self._of_slowest(found)
        paces: list[float] = found.tolist()
        return paces

    def _of_slowest(self, mine: Tensor) -> Tensor:
        """Scales the mean pace of each pass to the slowest rank, which is determined over all passes: in a single pass
        it would be whichever was just delayed."""
        slowest, together = mine.mean(), mine.clone()
        all_reduce(slowest, self._group, dist.ReduceOp.MAX).wait()
        all_reduce(together, self._group).wait()
        return together * (slowest / together.mean())
