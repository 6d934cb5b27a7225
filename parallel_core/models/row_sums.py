"""LayerNorm and embedding in 16 bits, with parameter gradients that are sums over rows in fp32.

torch's CPU kernels add up the rows of a micro-batch in the dtype of the gradient: of 4096 equal rows bf16 keeps 256.
Here the sums have fp32, and are handed to autograd so: a parameter of the engine takes gradients wider than itself
(`engine.flat`). Rows are widened in blocks, which keeps the temporaries small. In fp32 and fp64 torch's own functions
run, and on a GPU, whose kernels sum in fp32, except the embedding's of FEW_ROWS.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from parallel_core.outline.temporaries import FEW_ROWS, widened_rows


class _LayerNorm(torch.autograd.Function):
    """LayerNorm over the last dimension with statistics in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        out, mean, inverse = torch.native_layer_norm(x, weight.shape, weight.float(), bias.float(), eps)
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, bias, mean, inverse = ctx.saved_tensors
        of_weight, of_bias = torch.zeros(2, len(weight), dtype=torch.float32)
        rows, blocks = widened_rows(len(weight)), (grad, x, mean, inverse)
        for g, block, m, scale in zip(*(tensor.flatten(0, -2).split(rows) for tensor in blocks), strict=True):
            of_bias += g.sum(0, dtype=torch.float32)
            of_weight += block.float().sub_(m).mul_(scale).mul_(g).sum(0)
        wide = weight.float(), bias.float()
        need = [True, False, False]
        grad_x, _, _ = torch.ops.aten.native_layer_norm_backward(grad, x, weight.shape, mean, inverse, *wide, need)
        return grad_x, of_weight, of_bias, None


class LayerNorm(nn.LayerNorm):
    """torch's layer norm over the last dimension (Ba et al. 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        if not (x.is_cpu and x.dtype.itemsize < 4):
            return super().forward(x)
        out: Tensor = _LayerNorm.apply(x, self.weight, self.bias, self.eps)
        return out


class _Embedding(torch.autograd.Function):
    """Rows of a table."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape = weight.shape
        return F.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (ids,), (count, width) = ctx.saved_tensors, ctx.shape
        if not grad.is_cpu:  # FEW_ROWS at most, so that they are widened all at once
            return None, torch.ops.aten.embedding_dense_backward(grad.float(), ids, count, -1, False)
        out, rows = torch.zeros(ctx.shape, dtype=torch.float32), widened_rows(width)
        for at, block in zip(ids.flatten().split(rows), grad.reshape(-1, width).split(rows), strict=True):
            out.index_add_(0, at, block.float())
        return None, out


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Returns the rows `ids` [...] (int64) of `weight` [rows, width]: [..., width]."""
    if weight.dtype.itemsize >= 4 or (not weight.is_cpu and ids.numel() > FEW_ROWS):
        return F.embedding(ids, weight)
    out: Tensor = _Embedding.apply(ids, weight)
    return out
