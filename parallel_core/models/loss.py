"""The loss that every model ends in. Its buffer is the logits' own: log-probabilities, and later their gradient.

torch's cross-entropy keeps log-probabilities beside the logits and makes two more tensors of that size in the backward.
With a vocabulary of some size they are the largest of a run, and writing them is what the loss costs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parallel_core.models.numerics import wide


class _Summed(torch.autograd.Function):
    """Overwrites `logits`, which nobody else may need, or what they are in fp32."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        logs, ctx.dtype = wide(logits), logits.dtype
        torch.ops.aten._log_softmax.out(logs, 1, False, out=logs)  # a row is read before it is written
        ctx.save_for_backward(logs, targets)
        return F.nll_loss(logs, targets, reduction="sum", ignore_index=-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        logs, targets = ctx.saved_tensors
        rows = (grad.to(logs.dtype) * (targets >= 0))[:, None]
        picked, shares = targets.clamp(min=0)[:, None], logs.exp_()
        if ctx.dtype == logs.dtype:
            return shares.mul_(rows).scatter_add_(1, picked, -rows), None
        there = shares.gather(1, picked).mul_(rows).sub_(rows)
        out = torch.mul(shares, rows, out=torch.empty_like(shares, dtype=ctx.dtype))  # multiplied and rounded at once
        return out.scatter_(1, picked, there.to(ctx.dtype)), None


class CrossEntropySum(nn.Module):
    """Sum of the negative log likelihoods: logits (n, classes), targets (n,), -1 not counted -> scalar.

    The logits are used up.
    """

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        out: Tensor = _Summed.apply(logits, targets)
        return out
