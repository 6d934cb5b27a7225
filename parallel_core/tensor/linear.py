"""Linear layers split over a tensor group (Shoeybi et al. 2019, Megatron-LM, section 3).

Column parallel: Y_i = X A_i, the output stays split; the gradient of X is summed in the backward pass (their f).
Row parallel: Y = sum_i X_i B_i, summed in the forward pass (their g). One of each makes a block with one collective in
either direction.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from parallel_core.tensor.group import TensorGroup


class _Column(torch.autograd.Function):
    """Linear whose input gradient is summed over the group, while the weight gradient is being computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, group: TensorGroup) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.biased = group, bias is not None
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        grad_x = (rows @ weight).view_as(x)
        begun = ctx.group.begin_all_reduce(grad_x)
        grad_weight = rows.t() @ x.flatten(0, -2)
        grad_bias = rows.sum(0) if ctx.biased else None
        ctx.group.end_all_reduce(begun)
        return grad_x, grad_weight, grad_bias, None


class _Row(torch.autograd.Function):
    """Linear over a split input, its partial products summed over the group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, group: TensorGroup) -> Tensor:
        ctx.save_for_backward(x, weight)
        # The bias must enter the sum once: with the first rank's product.
        return group.all_reduce(F.linear(x, weight, bias if group.rank == 0 else None))

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        return (rows @ weight).view_as(x), rows.t() @ x.flatten(0, -2), rows.sum(0), None


class ColumnLinear(nn.Module):
    """Holds `out / size` rows of the weight; (..., in) -> (..., out / size)."""

    def __init__(self, full: nn.Linear, group: TensorGroup) -> None:
        super().__init__()
        out = full.out_features // group.size
        self.group = group
        self.weight = nn.Parameter(full.weight.new_empty(out, full.in_features))
        self.bias = nn.Parameter(full.weight.new_empty(out)) if full.bias is not None else None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Column.apply(x, self.weight, self.bias, self.group)
        return out


class RowLinear(nn.Module):
    """Holds `in / size` columns of the weight and the whole bias; (..., in / size) -> (..., out) on every rank."""

    def __init__(self, full: nn.Linear, group: TensorGroup) -> None:
        super().__init__()
        self.group = group
        self.weight = nn.Parameter(full.weight.new_empty(full.out_features, full.in_features // group.size))
        self.bias = nn.Parameter(full.weight.new_empty(full.out_features))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Row.apply(x, self.weight, self.bias, self.group)
        return out
