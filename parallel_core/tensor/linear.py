"""Linear layers split over a tensor-parallel group (Shoeybi et al. 2019, Megatron-LM, section 3).

Column parallel: Y_i = X A_i, the output stays split; the gradient of X is summed in the backward pass (their f). Row
parallel: Y = sum_i X_i B_i, summed in the forward pass (their g). A pair of both needs one collective per direction.

Over a group of one both are a plain linear layer whose weight gradient can be put off (`weights`). With small
micro-batches there are many calls, each with cold caches after large products, so Python overhead is kept low.
Parameters are read from `_parameters`, because attribute access on a module is slow.

A layer that ends a recomputed block is not computed again (`SplitLinear.passing`): its backward reads its input, and
nothing but the block's output is made of its product.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parallel_core.models.microbatch_context import MicroBatchContext
from parallel_core.tensor.group import TensorGroup
from parallel_core.tensor.weights import WeightGradient, WeightGradients


def left_out(layer: SplitLinear) -> bool:
    """Whether the layer's block is being recomputed, without this product at its end."""
    return layer.passing is not None and layer.passing.again


def unread(like: Tensor, *shape: int) -> Tensor:
    """Returns zeros of a shape, in the memory of one: they stand for a product that nothing reads."""
    return like.new_zeros(()).expand(shape)


class _Column(torch.autograd.Function):
    """Linear layer whose input gradient is all-reduced over the group while the weight gradient is computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: ColumnLinear) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        own: dict[str, Any] = layer._parameters
        if left_out(layer):
            return unread(x, *x.shape[:-1], own["weight"].shape[0])
        return F.linear(x, own["weight"], own.get("bias"))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,), layer, rows = ctx.saved_tensors, ctx.layer, grad.flatten(0, -2)
        group, own, grad_x, begun = layer.group, layer._parameters, None, None
        weight = own["weight"]
        if ctx.needs_input_grad[0]:
            grad_x = torch.mm(rows, weight).view_as(x)
            begun = group.begin_all_reduce(grad_x) if group.size > 1 else None
        layer.weights.hand_in(WeightGradient(x, rows, weight, own.get("bias")))
        if begun is not None:
            group.end(begun)
        return grad_x, None, None


_column: Any = super(torch.autograd.Function, _Column).apply
"""`_Column.apply` without its Python overhead for `torch.func`, which is not used here."""


class _Row(torch.autograd.Function):
    """Linear layer over a split input, with partial products all-reduced over the group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: RowLinear) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        if left_out(layer):
            return unread(x, *x.shape[:-1], layer.weight.shape[0])
        # The bias must be added once: by the first rank.
        return layer.group.all_reduce(F.linear(x, layer.weight, layer.bias if layer.group.rank == 0 else None))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,), layer = ctx.saved_tensors, ctx.layer
        grad_x = (grad.flatten(0, -2) @ layer.weight).view_as(x)
        layer.weights.hand_in(WeightGradient(x, grad, layer.weight, layer.bias))
        return grad_x, None, None


class SplitLinear(nn.Module):
    """Base of column- and row-parallel layers: their parameter gradients go to `weights`, not through autograd."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    passing: MicroBatchContext | None = None
    """Set on a layer that ends a recomputed block: while its block is recomputed, its product is left out."""

    def __init__(self, group: TensorGroup, weights: WeightGradients) -> None:
        super().__init__()
        self.group, self.weights = group, weights


class ColumnLinear(SplitLinear):
    """Holds `out / size` rows of the weight; [..., in] -> [..., out / size]. Over a group of one, a plain linear."""

    def __init__(self, full: nn.Linear, group: TensorGroup, weights: WeightGradients) -> None:
        super().__init__(group, weights)
        out = full.out_features // group.size
        self.weight = nn.Parameter(full.weight.new_empty(out, full.in_features))
        self.bias = nn.Parameter(full.weight.new_empty(out)) if full.bias is not None else None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _column(x, self.weights.anchor, self)
        return out


class RowLinear(SplitLinear):
    """Holds `in / size` columns of the weight and the whole bias; [..., in / size] -> [..., out] on every rank."""

    def __init__(self, full: nn.Linear, group: TensorGroup, weights: WeightGradients) -> None:
        super().__init__(group, weights)
        self.weight = nn.Parameter(full.weight.new_empty(full.out_features, full.in_features // group.size))
        self.bias = nn.Parameter(full.weight.new_empty(full.out_features)) if full.bias is not None else None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Row.apply(x, self.weights.anchor, self)
        return out
