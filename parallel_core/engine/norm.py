"""The global gradient norm and the loss of a step, by one small gather.

Each rank puts in the squared norm of every parameter share it holds (under ZeRO: owns), and its part of the loss.
Everyone adds them in the same order, by parameter name, tensor rank and replica: the same bits under every pipeline
placement. A parameter that several tensor ranks hold whole, and a tied one on two stages, is counted once.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch

from parallel_core.engine.collectives import Group, TableGroup, all_gather, all_reduce
from parallel_core.engine.device import Device
from parallel_core.engine.flat import FlatParameters
from parallel_core.engine.stop import StopRequest
from parallel_core.layout import Layout
from parallel_core.models.registry import parameter_shapes
from parallel_core.outline.splits import TensorSplit, split_dim
from parallel_core.plan.grad_buckets import shards_of
from parallel_core.spec import ModelSpec, RunSpec


class Totals(NamedTuple):
    """Of one step over all ranks. `grad_norm` is that of the loss itself; where it is not finite in fp16, every rank
    skipped the step. `loss_scale` is the one that the step ran under, `skipped` counts such steps so far. Without a
    flush both are those of the rank's own stage behind the step: its skipped updates."""

    loss: float
    grad_norm: float
    loss_scale: float = 1.0
    skipped: int = 0
    stop: bool = False
    """Some rank was asked to stop: all do, behind this step (a pipeline that is full drains first)."""
    step: int = -1


class Gathering(NamedTuple):
    """Totals of a step on their way."""

    step: int
    mine: torch.Tensor
    table: torch.Tensor
    work: Any
    loss_scale: float = 1.0
    skipped: int = 0
    """Of the own stage, where each has its own."""


class StepTotals:
    """`gather` the totals of a step; every rank of the world calls it. Overflow anywhere makes the norm not finite
    everywhere, so no collective of its own decides whether a step is skipped."""

    def __init__(
        self,
        spec: RunSpec,
        layout: Layout,
        flat: FlatParameters,
        group: TableGroup,
        device: Device,
        stop: StopRequest | None = None,
    ) -> None:
        model = spec.model
        self._group, self._device, self._stop = group, device, stop or StopRequest()
        named = [held(model, layout, place) for place in range(layout.pp)]
        names, grads = sorted(slot.name for slot in flat), flat.owned_grads()
        self._grads = [grads[name] for name in names]
        self._width = max(map(len, named)) + 2
        self._world = layout.world if group is not None else 1
        places: dict[str, list[tuple[int, int]]] = {}
        for place, names in enumerate(named):
            for column, name in enumerate(names):
                shares = 1 if split_dim(name, spec.parallel.tensor_split) is None else layout.widths[place]
                holders = product(range(shares), range(shards_of(spec)))
                places.setdefault(name, [(layout.rank(place, replica, t), column) for t, replica in holders])
        order = np.array([place for name in sorted(places) for place in places[name]])
        self._rows, self._columns = order[:, 0], order[:, 1]
        last = layout.place(layout.stages - 1)
        self._losses = [layout.rank(last, replica) for replica in range(layout.replicas[last])]

    def gather(self, loss: torch.Tensor | None, step: int = -1) -> Totals:
        """`loss` is this rank's part (None on a rank that computes none)."""
        return self.result(self.begin(step, loss, self.squares()))

    def squares(self) -> torch.Tensor:
        """Squared norm of every parameter's gradient, as this rank has it; in order of their names."""
        return torch.stack(torch._foreach_norm(self._grads)).double().square()

    def begin(self, step: int, loss: torch.Tensor | None, squares: torch.Tensor) -> Gathering:
        """Sends this rank's part; nobody waits."""
        mine = torch.zeros(self._width, dtype=torch.float64, device=self._device.torch)
        mine[: len(squares)] = squares
        mine[-2] = self._stop.asked
        if loss is not None:
            mine[-1] = loss
        if self._group is None:
            return Gathering(step, mine, mine, None)
        out = torch.empty(self._world * self._width, dtype=mine.dtype, device=mine.device)
        work = all_gather(out, mine, self._group)
        return Gathering(step, mine, out, work)

    def result(self, begun: Gathering) -> Totals:
        """Waits for all ranks' parts."""
        if begun.work is not None:
            begun.work.wait()
        table = begun.table.cpu().numpy().reshape(self._world, self._width)
        squares = table[self._rows, self._columns]
        loss_sum, stop = table[self._losses, -1].sum(), table[:, -2].any()
        return Totals(
            float(loss_sum), float(np.sqrt(squares.sum())), begun.loss_scale, begun.skipped, bool(stop), begun.step
        )


class StageNorm:
    """The norm of the gradients of one place of the pipeline: of all its layers, over the tensor group.

    What every tensor rank holds whole counts once. Replicas have the same sums, so the same norm.
    """

    def __init__(self, flat: FlatParameters, group: Group, tensor: int, how: TensorSplit) -> None:
        names = sorted(slot.name for slot in flat)
        counted = [tensor == 0 or split_dim(name, how) is not None for name in names]
        self._counted = torch.tensor(counted, dtype=torch.float64, device=flat.grads.device)
        self._group = group

    def of(self, squares: torch.Tensor) -> float:
        """From `StepTotals.squares`; every rank of the tensor group calls it."""
        counted = squares * self._counted
        if self._group is None:  # added in the order of `StepTotals.result`: one stage alone has the global norm's bits
            return float(np.sqrt(counted.cpu().numpy().sum()))
        total = counted.sum()
        all_reduce(total, self._group).wait()
        return float(total.sqrt())


def clip_factor(norm: float, limit: float | None) -> float:
    """What gradients of this norm are multiplied by, so that it is at most `limit` (None = as it comes)."""
    return 1.0 if limit is None or not norm > limit else limit / (norm + 1e-6)


def held(model: ModelSpec, layout: Layout, place: int) -> list[str]:
    """Names of the parameters of all stages on `place`, sorted; a tied one once."""
    units = model.units()
    here = [units[i] for stage in layout.stages_of(place) for i in layout.stage_units[stage]]
    return sorted(parameter_shapes(model, here))
