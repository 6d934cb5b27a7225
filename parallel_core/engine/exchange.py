"""A few numbers exchanged among all ranks of a run, beside the totals of its steps (`norm.StepTotals`)."""

from __future__ import annotations

import torch

from parallel_core.engine.collectives import Group, all_gather
from parallel_core.engine.device import Device


class Exchange:
    """The exchanges of one rank. Each is a collective: every rank calls it, and all get the same."""

    def __init__(self, device: Device, group: Group, world: int) -> None:
        """`world` = number of ranks in `group`."""
        self._device, self._group, self._world = device, group, world

    def rows(self, mine: list[float]) -> list[list[float]]:
        """The numbers of all ranks, in rank order; each gives as many."""
        if self._group is None:
            return [mine]
        given = torch.tensor(mine, dtype=torch.float64, device=self._device.torch)
        out = torch.empty(self._world * len(mine), dtype=torch.float64, device=self._device.torch)
        all_gather(out, given, self._group).wait()
        rows: list[list[float]] = out.view(self._world, -1).tolist()
        return rows

    def totals(self, mine: list[float]) -> list[float]:
        """The element-wise sums of the numbers of all ranks."""
        return [sum(column) for column in zip(*self.rows(mine), strict=True)]

    def meet(self) -> None:
        """Waits until every rank has come here."""
        self.rows([0.0])
