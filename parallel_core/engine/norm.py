"""The global gradient norm and the loss of a step, by one small all-gather.

Each rank contributes the squared norm of every parameter share it holds (under ZeRO: owns), and its part of the loss.
All ranks add them in the same order, by parameter name, tensor rank and replica, so the result has the same bits under
every pipeline placement. A parameter that several tensor ranks hold whole, or a tied one on two stages, is counted
once.
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
    """Totals of one step over all ranks.

    `grad_norm` is the norm of the unscaled gradient; where it is not finite in fp16, every rank skipped the step.
    `loss_scale` is the one that the step ran under, `skipped` the number of skipped steps so far. Without a flush
    both are those of the rank's own stage after the step, and `skipped` counts its skipped updates.
    """

    loss: float
    grad_norm: float
    loss_scale: float = 1.0
    skipped: int = 0
    stop: bool = False
    """Whether any rank was asked to stop: all ranks do so after this step (a pipeline that is full drains first)."""
    step: int = -1


class Gathering(NamedTuple):
    """The totals of a step while they are being gathered."""

    step: int
    mine: torch.Tensor
    table: torch.Tensor
    work: Any
    loss_scale: float = 1.0
    skipped: int = 0
    """Like `loss_scale` that of the own stage, where each stage has its own."""


class StepTotals:
    """Gathers the totals of a step; every rank of the world calls it.

    An overflow on any rank makes the norm non-finite on all ranks, so no further collective is needed to decide
    whether a step is skipped.
    """

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
        """Returns the totals. `loss` is this rank's part of the loss (None on a rank that computes none)."""
        return self.result(self.begin(step, loss, self.squares()))

    def squares(self) -> torch.Tensor:
        """Returns the squared gradient norm of every parameter share on this rank, ordered by parameter name."""
        return torch.stack(torch._foreach_norm(self._grads)).double().square()

    def begin(self, step: int, loss: torch.Tensor | None, squares: torch.Tensor) -> Gathering:
        """Starts gathering this rank's part without waiting."""
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
        """Waits for the parts of all ranks and returns the totals."""
        if begun.work is not None:
            begun.work.wait()
        table = begun.table.cpu().numpy().reshape(self._world, self._width)
        squares = table[self._rows, self._columns]
        loss_sum, stop = table[self._losses, -1].sum(), table[:, -2].any()
        return Totals(
            float(loss_sum), float(np.sqrt(squares.sum())), begun.loss_scale, begun.skipped, bool(stop), begun.step
        )


class StageNorm:
    """The gradient norm of one pipeline rank: of all its layers, over the tensor-parallel group.

    A parameter that every tensor rank holds whole is counted once. Replicas have the same reduced gradients, so the
    same norm.
    """

    def __init__(self, flat: FlatParameters, group: Group, tensor: int, how: TensorSplit) -> None:
        names = sorted(slot.name for slot in flat)
        counted = [tensor == 0 or split_dim(name, how) is not None for name in names]
        self._counted = torch.tensor(counted, dtype=torch.float64, device=flat.grads.device)
        self._group = group

    def of(self, squares: torch.Tensor) -> float:
        """Returns the norm; `squares` is from `StepTotals.squares`. A collective of the tensor-parallel group."""
        counted = squares * self._counted
        if self._group is None:  # the same order of addition as in `StepTotals.result`: same bits with a single stage
            return float(np.sqrt(counted.cpu().numpy().sum()))
        total = counted.sum()
        all_reduce(total, self._group).wait()
        return float(total.sqrt())


def clip_factor(norm: float, limit: float | None) -> float:
    """Returns the factor that reduces gradients of norm `norm` to at most `limit` (None: no clipping)."""
    return 1.0 if limit is None or not norm > limit else limit / (norm + 1e-6)


def held(model: ModelSpec, layout: Layout, place: int) -> list[str]:
    """Returns the names of the parameters of all stages on pipeline rank `place`, sorted; a tied one once."""
    units = model.units()
    here = [units[i] for stage in layout.stages_of(place) for i in layout.stage_units[stage]]
    return sorted(parameter_shapes(model, here))
