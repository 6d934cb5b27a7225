"""How fast a device was during each of some passes in a row: the reference work is done between all of them.

A core of a shared host changes its pace within a second, so a mean over many passes says little of one; what was done
right before and right behind it does.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from parallel_core.engine.collectives import Group, all_reduce
from parallel_core.observe.reference import Reference


class PaceProbe:
    """Of one rank; of ranks in a `group`, which wait for each other in every pass, that of the slowest of them."""

    def __init__(self, reference: Reference | None, group: Group = None) -> None:
        """`reference` None: all paces are 1."""
        self._reference, self._group = reference, group
        self._took: list[float] = []

    def begin(self) -> None:
        self._took.clear()
        self.behind()

    def behind(self) -> None:
        """Behind each pass."""
        if self._reference is not None:
            self._took.append(self._reference.once())

    def paces(self, passes: int) -> list[float]:
        """Seconds of the work around each of the `passes` since `begin`, of which all of a group made as many."""
        if self._reference is None:
            return [1.0] * passes
        found = torch.tensor([(before + behind) / 2 for before, behind in pairwise(self._took)], dtype=torch.float64)
        if self._group is not None:
            found = self._of_slowest(found)
        paces: list[float] = found.tolist()
        return paces

    def _of_slowest(self, mine: Tensor) -> Tensor:
        """Who is the slowest is told by all passes: of each alone it would be whoever had the last hiccup."""
        slowest, together = mine.mean(), mine.clone()
        all_reduce(slowest, self._group, dist.ReduceOp.MAX).wait()
        all_reduce(together, self._group).wait()
        return together * (slowest / together.mean())
