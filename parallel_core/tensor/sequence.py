"""Sequence parallelism (Korthikanti et al. 2022, section 4.2.2): between split layers each rank holds some of the rows.

What tensor parallelism replicates (norms, dropout, residual sums) works on each position independently, so each of
the t ranks of the group takes 1 / t of them. The all-reduce of a row-parallel layer becomes a reduce-scatter (their
g-bar), and the input of a column-parallel layer is gathered (their g): the same bytes communicated, 1 / t of the
memory. A column-parallel layer saves only its own rows and gathers the others again for its weight gradient, while
its input gradient is computed.

Rows are the positions of all samples of a micro-batch in order, so that a share is contiguous: no copies. A tensor of
rows is [1, rows / t, hidden].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from parallel_core.models.dropout import Held
from parallel_core.models.layers import Positions
from parallel_core.models.row_sums import embedding
from parallel_core.tensor.group import TensorGroup
from parallel_core.tensor.linear import ColumnLinear, RowLinear, left_out, unread
from parallel_core.tensor.vocab import VocabEmbedding
from parallel_core.tensor.weights import WeightGradient, WeightGradients


@dataclass(frozen=True)
class Rows:
    """Which rows a rank of `group` holds; a sample has `seq` rows."""

    group: TensorGroup
    seq: int

    @property
    def held(self) -> Held:
        """This rank's rows, as `Dropout` needs them."""
        return Held(self.group.rank, self.group.size, self.seq)

    def whole(self, rows: Tensor) -> Tensor:
        """Reshapes [1, samples x seq, width] to [samples, seq, width]."""
        return rows.view(-1, self.seq, rows.shape[-1])


class _Gathered(torch.autograd.Function):
    """Column-parallel linear layer: gathers its input rows first."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, anchor: Tensor, layer: GatheringColumn) -> Tensor:
        ctx.save_for_backward(mine)
        ctx.layer = layer
        group, rows = layer.group, layer.rows
        return F.linear(rows.whole(group.gather(mine)), layer.weight, layer.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (mine,), layer = ctx.saved_tensors, ctx.layer
        group, rows = layer.group, layer.rows
        gathering = group.begin_gather(mine)
        grad_x = grad.flatten(0, -2) @ layer.weight
        x = rows.whole(group.end(gathering))
        scattering = group.begin_scatter(grad_x)
        layer.weights.hand_in(WeightGradient(x, grad, layer.weight, layer.bias))
        return group.end(scattering), None, None


class _Scattered(torch.autograd.Function):
    """Row-parallel linear layer: the sum over the group is reduce-scattered by rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: ScatteringRow) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        group = layer.group
        if left_out(layer):
            return unread(x, 1, x.shape[0] * x.shape[1] // group.size, layer.weight.shape[0])
        return group.scatter(F.linear(x, layer.weight, layer.bias if group.rank == 0 else None))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mine: Tensor) -> tuple[Tensor, None, None]:
        (x,), layer = ctx.saved_tensors, ctx.layer
        grad = layer.rows.whole(layer.group.gather(mine))
        grad_x = (grad.flatten(0, -2) @ layer.weight).view_as(x)
        layer.weights.hand_in(WeightGradient(x, grad, layer.weight, layer.bias))
        return grad_x, None, None


class GatheringColumn(ColumnLinear):
    """[1, rows / t, in] -> [samples, seq, out / t]."""

    def __init__(self, full: nn.Linear, rows: Rows, weights: WeightGradients) -> None:
        super().__init__(full, rows.group, weights)
        self.rows = rows

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Gathered.apply(x, self.weights.anchor, self)
        return out


class ScatteringRow(RowLinear):
    """[samples, seq, in / t] -> [1, rows / t, out]."""

    def __init__(self, full: nn.Linear, rows: Rows, weights: WeightGradients) -> None:
        super().__init__(full, rows.group, weights)
        self.rows = rows

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Scattered.apply(x, self.weights.anchor, self)
        return out


class _RowsOfSum(torch.autograd.Function):
    """Reduce-scatters by rows; gathers the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Rows) -> Tensor:
        ctx.rows = rows
        return rows.group.scatter(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, mine: Tensor) -> tuple[Tensor, None]:
        rows = ctx.rows
        return rows.whole(rows.group.gather(mine)), None


class ScatteringEmbedding(VocabEmbedding):
    """Ids [samples, seq] -> [1, rows / t, hidden]."""

    def __init__(self, full: nn.Embedding, rows: Rows) -> None:
        super().__init__(full, rows.group)
        self.rows = rows

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = _RowsOfSum.apply(self.mine(ids), self.rows)
        return out


class SharedPositions(nn.Module):
    """Adds to each row the vector of its position; every rank holds all vectors."""

    def __init__(self, full: Positions, rows: Rows) -> None:
        super().__init__()
        self.weight, self.rows = full.weight, rows

    def forward(self, x: Tensor) -> Tensor:
        runs = [(start, stop) for _, start, stop in self.rows.held.runs(x.shape[1])]
        if len(runs) > 1 and self.weight.dtype.itemsize < 4:  # autograd would add up the gradients of slices in 16 bits
            return x + embedding(torch.cat([torch.arange(*run, device=x.device) for run in runs]), self.weight)
        pieces = [self.weight[start:stop] for start, stop in runs]
        return x + (pieces[0] if len(pieces) == 1 else torch.cat(pieces))
