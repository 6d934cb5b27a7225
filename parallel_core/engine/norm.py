"""The global gradient norm and the loss of a step, by one small all-gather.

Each rank contributes the squared norm of every parameter share it holds (under ZeRO: owns), and its part of the loss.
All ranks add them in the same order, by parameter name, tensor rank and replica, so the result has the same bits under
every pipeline placement. A parameter that several tensor ranks hold whole, or a tied one on two stages, is counted
once.

On a GPU, whether and how much an update is clipped or skipped is decided there, so that the host can queue the update
without waiting: norms are then numbers on the device (`Number`). The host reads the totals after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch

from parallel_core.engine.collectives import Group, TableGroup, all_gather, sum_in_rank_order
from parallel_core.engine.device import Device
from parallel_core.engine.flat import FlatParameters
from parallel_core.engine.host_copies import Download
from parallel_core.engine.stop import Reason, StopRequest
from parallel_core.layout import Layout
from parallel_core.models.registry import parameter_shapes
from parallel_core.outline.splits import TensorSplit, split_dim
from parallel_core.plan.grad_buckets import shards_of
from parallel_core.schedule.stream import steps_apart
from parallel_core.spec import ModelSpec, RunSpec

Number = float | torch.Tensor
"""A number on the host, or a tensor without dimensions on the device."""


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
    stop: Reason = Reason.NONE
    """Why some rank has to stop: all ranks do so after this step (a pipeline that is full drains first)."""
    step: int = -1


@dataclass
class Gathering:
    """The totals of a step while they are being gathered."""

    step: int
    mine: torch.Tensor
    table: torch.Tensor
    work: Any
    download: Download
    loss_scale: float = 1.0
    skipped: int = 0
    """Like `loss_scale` that of the own stage, where each stage has its own."""
    totals: Totals | None = None
    """The result, once it is known to the host."""


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
        self._places = _on_device(self._rows * self._width + self._columns, device.torch)
        table = torch.empty(self._world * self._width, dtype=torch.float64, device=device.torch)
        self._downloads = device.downloads(table, 1 + steps_apart(spec))
        last = layout.place(layout.stages - 1)
        self._losses = [layout.rank(last, replica) for replica in range(layout.replicas[last])]

    def gather(self, loss: torch.Tensor | None, step: int = -1) -> Totals:
        """Returns the totals. `loss` is this rank's part of the loss (None on a rank that computes none)."""
        return self.result(self.begin(step, loss, self.squares()))

    def squares(self) -> torch.Tensor:
        """Returns the squared gradient norm of every parameter share on this rank, ordered by parameter name."""
        return torch.stack(torch._foreach_norm(self._grads)).double().square()

    def begin(self, step: int, loss: torch.Tensor | None, squares: torch.Tensor) -> Gathering:
        """Starts gathering this rank's part without waiting. At most 1 + `steps_apart` are under way at once."""
        mine = torch.zeros(self._width, dtype=torch.float64, device=self._device.torch)
        mine[: len(squares)] = squares
        mine[-2:-1] = self._stop.reason  # a fill; to one element it would be a copy, for which the host waits on a GPU
        if loss is not None:
            mine[-1] = loss
        if self._group is None:
            return Gathering(step, mine, mine, None, self._downloads.begin(mine, None))
        out = torch.empty(self._world * self._width, dtype=mine.dtype, device=mine.device)
        work = all_gather(out, mine, self._group)
        return Gathering(step, mine, out, work, self._downloads.begin(out, work))

    def norm(self, begun: Gathering) -> Number:
        """Returns the gradient norm over all ranks. On a CPU it waits for their parts; on a GPU the device does."""
        if self._places is None:
            return self.result(begun).grad_norm
        if begun.work is not None:
            begun.work.wait()
        return begun.table.index_select(0, self._places).sum().sqrt()

    def result(self, begun: Gathering) -> Totals:
        """Waits for the parts of all ranks and returns the totals."""
        if begun.totals is None:
            table = begun.download.wait().numpy().reshape(self._world, self._width)
            norm = float(np.sqrt(table[self._rows, self._columns].sum()))
            loss, stop = float(table[self._losses, -1].sum()), Reason(int(table[:, -2].max()))
            begun.totals = Totals(loss, norm, begun.loss_scale, begun.skipped, stop, begun.step)
        return begun.totals


class StageNorm:
    """The gradient norm of one pipeline rank: of all its layers, over the tensor-parallel group.

    A parameter that every tensor rank holds whole is counted once. Replicas have the same reduced gradients,
    added in the same order, so the same norm.
    """

    def __init__(self, flat: FlatParameters, group: Group, tensor: int, how: TensorSplit) -> None:
        names = sorted(slot.name for slot in flat)
        counted = [tensor == 0 or split_dim(name, how) is not None for name in names]
        self._counted = torch.tensor(counted, dtype=torch.float64, device=flat.grads.device)
        self._group = group

    def of(self, squares: torch.Tensor) -> Number:
        """Returns the norm; `squares` is from `StepTotals.squares`. A collective of the tensor-parallel group, for
        which the host does not wait on a GPU."""
        counted = squares * self._counted
        if self._group is None and counted.is_cpu:
            # the same order of addition as in `StepTotals.result`: same bits with a single stage
            return float(np.sqrt(counted.numpy().sum()))
        total = counted.sum()
        if self._group is not None:
            sum_in_rank_order(total, self._group)
        return float(total.sqrt()) if total.is_cpu else total.sqrt()

    def read(self, squares: torch.Tensor) -> float:
        """Returns the norm as `of` does; the host waits for it."""
        return float(self.of(squares))


def clip_factor(norm: Number, limit: float | None) -> Number:
    """Returns the factor that reduces gradients of norm `norm` to at most `limit` (None: no clipping)."""
    if limit is None:
        return 1.0
    if isinstance(norm, torch.Tensor):
        return torch.where(norm > limit, limit / (norm + 1e-6), 1.0)
    return limit / (norm + 1e-6) if norm > limit else 1.0


def _on_device(places: np.ndarray, device: torch.device) -> torch.Tensor | None:
    """Returns the numbers of elements as a tensor on the device; None on a CPU, where NumPy uses them."""
    return None if device.type == "cpu" else torch.from_numpy(places).to(device)


def held(model: ModelSpec, layout: Layout, place: int) -> list[str]:
    """Returns the names of the parameters of all stages on pipeline rank `place`, sorted; a tied one once."""
    units = model.units()
    here = [units[i] for stage in layout.stages_of(place) for i in layout.stage_units[stage]]
    return sorted(parameter_shapes(model, here))
