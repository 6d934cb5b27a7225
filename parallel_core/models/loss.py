"""The cross-entropy loss of all models. It works in the memory of the logits: log-probabilities, later their gradient.

torch's cross-entropy keeps log-probabilities in addition to the logits and allocates two more tensors of that size in
backward. With a large vocabulary these are the largest tensors of a run, and writing them is most of the cost of the
loss.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parallel_core.models.numerics import wide


class _Summed(torch.autograd.Function):
    """Summed cross-entropy. Overwrites `logits`, which must not be used elsewhere; 16-bit logits are copied to fp32
    instead."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        logs, ctx.dtype = wide(logits), logits.dtype
        torch.ops.aten._log_softmax.out(logs, 1, False, out=logs)  # in place works: a row is read before it is written
        ctx.save_for_backward(logs, targets)
        return F.nll_loss(logs, targets, reduction="sum", ignore_index=-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logs, targets = ctx.saved_tensors
        rows = (grad.to(logs.dtype) * (targets >= 0))[:, None]
        picked, shares = targets.clamp(min=0)[:, None], logs.exp_()
        if ctx.dtype == logs.dtype:
            return shares.mul_(rows).scatter_add_(1, picked, -rows), None
        there = shares.gather(1, picked).mul_(rows).sub_(rows)
        rounded = torch.empty_like(shares, dtype=ctx.dtype)
        out = torch.mul(shares, rows, out=rounded)  # multiplies and rounds in one pass
        return out.scatter_(1, picked, there.to(ctx.dtype)), None


class CrossEntropySum(nn.Module):
    """Sum of negative log likelihoods: logits [n, classes], targets [n] (-1: not counted) -> scalar. Overwrites the
    logits."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        out: Tensor = _Summed.apply(logits, targets)
        return out
