"""The global gradient norm and the loss of a step, by one small gather.

Each rank puts in the squared norm of every parameter share it holds (under ZeRO: owns), and its part of the loss.
Everyone adds them in the same order, by parameter name, tensor rank and replica: the same bits under every pipeline
placement. A parameter that several tensor ranks hold whole, and a tied one on two stages, is counted once.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from parallel_core.engine.device import Device
from parallel_core.engine.distributed import Group
from parallel_core.engine.flat import FlatParameters
from parallel_core.engine.stop import StopRequest
from parallel_core.layout import Layout
from parallel_core.models.registry import parameter_shapes
from parallel_core.outline.splits import split_dim
from parallel_core.plan.places import shards_of
from parallel_core.spec import ModelSpec, RunSpec


class Totals(NamedTuple):
    """Of one step over all ranks. `grad_norm` is that of the loss itself; where it is not finite in fp16, every rank
    skipped the step. `loss_scale` is the one that the step ran under, `skipped` counts such steps so far."""

    loss: float
    grad_norm: float
    loss_scale: float = 1.0
    skipped: int = 0
    stop: bool = False
    """Some rank was asked to stop: all do, behind this step."""


class StepTotals:
    """`gather` the totals of a step; every rank of the world calls it. Overflow anywhere makes the norm not finite
    everywhere, so no collective of its own decides whether a step is skipped."""

    def __init__(
        self,
        spec: RunSpec,
        layout: Layout,
        flat: FlatParameters,
        group: Group,
        device: Device,
        stop: StopRequest | None = None,
    ) -> None:
        model = spec.model
        self._flat, self._group, self._device, self._stop = flat, group, device, stop or StopRequest()
        named = [held(model, layout, place) for place in range(layout.pp)]
        self._names = sorted(slot.name for slot in flat)
        self._width = max(map(len, named)) + 2
        self._world = layout.world if group is not None else 1
        places: dict[str, list[tuple[int, int]]] = {}
        for place, names in enumerate(named):
            for column, name in enumerate(names):
                shares = 1 if split_dim(name) is None else layout.tp
                holders = product(range(shares), range(shards_of(spec)))
                places.setdefault(name, [(layout.rank(place, replica, t), column) for t, replica in holders])
        order = np.array([place for name in sorted(places) for place in places[name]])
        self._rows, self._columns = order[:, 0], order[:, 1]
        self._losses = [layout.rank(layout.place(layout.stages - 1), replica, 0) for replica in range(layout.dp)]

    def gather(self, loss: torch.Tensor | None) -> Totals:
        """`loss` is this rank's part (None on a rank that computes none)."""
        grads = self._flat.owned_grads()
        norms = torch.stack(torch._foreach_norm([grads[name] for name in self._names]))
        mine = torch.zeros(self._width, dtype=torch.float64, device=self._device.torch)
        mine[: len(norms)] = norms.double().square()
        mine[-2] = self._stop.asked
        if loss is not None:
            mine[-1] = loss
        table = self._exchange(mine)
        squares = table[self._rows, self._columns]
        loss_sum, stop = table[self._losses, -1].sum(), table[:, -2].any()
        return Totals(float(loss_sum), float(np.sqrt(squares.sum())), stop=bool(stop))

    def _exchange(self, mine: torch.Tensor) -> np.ndarray:
        """Every rank's numbers, (world, width)."""
        if self._group is None:
            return mine.cpu().numpy()[None]
        out = torch.empty(self._world * self._width, dtype=mine.dtype, device=mine.device)
        dist.all_gather_single(out, mine, group=self._group)
        return out.cpu().numpy().reshape(self._world, self._width)


def held(model: ModelSpec, layout: Layout, place: int) -> list[str]:
    """Names of the parameters of all stages on `place`, sorted; a tied one once."""
    units = model.units()
    here = [units[i] for stage in layout.stages_of(place) for i in layout.stage_units[stage]]
    return sorted(parameter_shapes(model, here))
