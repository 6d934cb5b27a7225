"""The dynamic programme between stages of a pipeline (Zheng et al. 2022, section 5.1, equation 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from parallel_core.plan.alpa.costs import LayerSharding


@dataclass(frozen=True)
class Stage:
    """Layers first .. stop - 1 on a mesh of dp x tp devices: seconds of one micro-batch, bytes a device."""

    first: int
    stop: int
    dp: int
    tp: int
    shardings: tuple[LayerSharding, ...]
    seconds: float
    memory: float

    @property
    def devices(self) -> int:
        return self.dp * self.tp


@dataclass(frozen=True)
class Table:
    """[shape, first edge, last edge] -> seconds of the fastest view of that stage (inf: none), and the stage itself."""

    seconds: NDArray[np.float64]
    stages: dict[tuple[int, int, int], Stage]


@dataclass(frozen=True)
class Programme:
    """The dynamic programme of equation 3: `tables[s]` holds the stages for the case that s + 1 stages are left."""

    tables: Sequence[Table]
    sizes: Sequence[int]
    devices: int

    def solve(self, t_max: float) -> list[Stage] | None:
        """The stages with the least sum of times, none above `t_max`, over all devices; None if impossible."""
        groups = self.tables[0].seconds.shape[1]
        least = np.full((groups + 1, self.devices + 1), inf)
        least[groups, 0] = 0.0
        picked: list[NDArray[np.int64]] = []
        best = (inf, 0)
        for table in self.tables:
            least, choice = self._one_more(np.where(table.seconds <= t_max, table.seconds, inf), least)
            picked.append(choice)
            best = min(best, (float(least[0, self.devices]), len(picked)))
        return self._traced(picked[: best[1]]) if best[0] < inf else None

    def _one_more(
        self, seconds: NDArray[np.float64], least: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """F with one more stage in front, and for each (first edge, devices) the index of its shape and last edge."""
        shapes, groups, edges = seconds.shape
        found = np.full((shapes, groups, edges, self.devices + 1), inf)
        for k, size in enumerate(self.sizes):
            found[k, :, :, size:] = seconds[k, :, :, None] + least[None, :, : self.devices + 1 - size]
        flat = found.transpose(0, 2, 1, 3).reshape(shapes * edges, groups, -1)
        longer = np.full_like(least, inf)
        longer[:groups] = flat.min(axis=0)
        return longer, flat.argmin(axis=0)

    def _traced(self, picked: Sequence[NDArray[np.int64]]) -> list[Stage]:
        found, i, left = [], 0, self.devices
        for table, choice in zip(self.tables[: len(picked)][::-1], picked[::-1], strict=True):
            k, j = divmod(int(choice[i, left]), table.seconds.shape[2])
            found.append(table.stages[k, i, j])
            i, left = j, left - self.sizes[k]
        return found
