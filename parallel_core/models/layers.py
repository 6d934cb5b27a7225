"""Layers shared by several models. They leave parameters uninitialized: initial values are set by `models.initial`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from parallel_core.models.loss import CrossEntropySum
from parallel_core.models.row_sums import LayerNorm, embedding
from parallel_core.spec import ModelSpec


class Linear(nn.Linear):
    """A linear layer with uninitialized parameters."""

    def reset_parameters(self) -> None:
        return


class Embedding(nn.Embedding):
    """An embedding with uninitialized parameters; torch's initialization on the meta device would import its compiler
    (a second per process)."""

    def reset_parameters(self) -> None:
        return

    def forward(self, ids: Tensor) -> Tensor:
        return embedding(ids, self.weight)


class Positions(Embedding):
    """Adds a learned vector per position: [batch, seq, hidden] -> [batch, seq, hidden]."""

    first = 0
    """Position of the first input: not 0 where text is generated token by token."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight[self.first : self.first + x.shape[1]]


class _RmsNorm(torch.autograd.Function):
    """RMSNorm that saves its input and one number per row; torch's own consists of single operations on a CPU, which
    save two more copies of the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, inverse)
        return (wide * inverse).to(x.dtype) * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        scaled = x * inverse
        inner = (grad * weight).to(scaled.dtype)
        inner.sub_(scaled * (inner * scaled).mean(-1, keepdim=True)).mul_(inverse)
        out = inner.to(x.dtype)
        del inner  # fp32 in 16-bit runs: the largest tensor that is live here
        return out, scaled.mul_(grad).flatten(0, -2).sum(0), None


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float = 1e-5, **like: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width, **like))

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:  # one kernel per direction there, which saves as little (pytorch/pytorch pull 153666)
            return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        out: Tensor = _RmsNorm.apply(x, self.weight, self.eps)
        return out


def norm_of(model: ModelSpec, **like: Any) -> nn.Module:
    """Returns the model's norm layer over its hidden size."""
    return LayerNorm(model.hidden, **like) if model.norm == "layernorm" else RmsNorm(model.hidden, **like)


class Convolution(nn.Conv2d):
    """A convolution with uninitialized parameters that preserves the image size apart from its stride."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = False, **like: Any
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride, kernel // 2, bias=bias, **like)

    def reset_parameters(self) -> None:
        return


class Classifier(nn.Module):
    """Features [batch, width] and classes [batch] -> summed loss."""

    def __init__(self, width: int, classes: int, **like: Any) -> None:
        super().__init__()
        self.output = Linear(width, classes, **like)
        self.criterion = CrossEntropySum()

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = self.criterion(self.output(x), targets)
        return loss
