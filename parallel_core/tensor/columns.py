"""Column-parallel split with all-gather: every linear layer of a block splits its outputs, none its inputs.

The simple way to split Y = X A is by the columns of A, Y_i = X A_i, with an all-gather of Y where all of it is
needed. Shoeybi et al. 2019, section 3, split every second matrix by rows instead, because then nothing needs
gathering between the two. Here layers are not paired, so that the two methods can be compared in traces:

    forward    attention: heads split -> gather their output -> projection by columns -> gather its output
               MLP: wide layer by columns -> activation -> gather -> narrow layer by columns -> gather its output
    backward   of a gathered output each rank takes its own columns, without communication; of a gathered input
               every rank has a partial gradient of all columns, and gets the sum of its own: a reduce-scatter

What is between the two linear layers works on each column (or head) independently, so the first one's output is
gathered after it: as many bytes for attention, and no activation computed twice. The first layer's input gradient is
summed over the group as in the paired split. For b samples, s positions and width h a rank sends and receives on a
ring (Patarasuk and Yuan 2009), in units of (t - 1)/t bsh elements, 5 for attention (pairs: 4) and 3 + 2 f/h for an
MLP of width f (pairs: 4).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from parallel_core.tensor.group import TensorGroup
from parallel_core.tensor.linear import ColumnLinear, left_out, unread
from parallel_core.tensor.weights import WeightGradient


def gather_columns(mine: Tensor, group: TensorGroup) -> Tensor:
    """All-gathers the ranks' [..., width / size] side by side: [..., width]."""
    rows = mine.flatten(0, -2)
    parts = group.gather(rows[None]).view(group.size, *rows.shape)
    return parts.transpose(0, 1).reshape(*mine.shape[:-1], group.size * mine.shape[-1])


def own_columns(whole: Tensor, group: TensorGroup) -> Tensor:
    """Returns a copy of this rank's columns: it may be kept for long, and must not keep `whole` alive."""
    return whole.chunk(group.size, -1)[group.rank].contiguous()


class _Gathered(torch.autograd.Function):
    """Gathers its input's columns, multiplies, and gathers the columns of the product."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, anchor: Tensor, layer: GatheredLinear) -> Tensor:
        x = gather_columns(mine, layer.group)
        ctx.save_for_backward(x)
        ctx.layer = layer
        if left_out(layer):
            return unread(x, *x.shape[:-1], layer.weight.shape[0] * layer.group.size)
        return gather_columns(F.linear(x, layer.weight, layer.bias), layer.group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, whole: Tensor) -> tuple[Tensor, None, None]:
        (x,), layer = ctx.saved_tensors, ctx.layer
        group, grad = layer.group, own_columns(whole, layer.group)
        # One product for each rank's columns, so that each part is contiguous, as reduce-scatter needs it.
        parts = layer.weight.unflatten(1, (group.size, -1)).transpose(0, 1)
        scattering = group.begin_scatter(grad.flatten(0, -2) @ parts)
        layer.weights.hand_in(WeightGradient(x, grad, layer.weight, layer.bias))
        return group.end(scattering).view(*x.shape[:-1], -1), None, None


class GatheredLinear(ColumnLinear):
    """Holds `out / size` rows of the weight; [..., in / size] -> [..., out] on every rank."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _Gathered.apply(x, self.weights.anchor, self)
        return out
