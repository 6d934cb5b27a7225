"""Gradients between stages of which each has its own loss scale (fp16 without a flush).

A message carries the factor that its gradient is multiplied by, behind the gradient itself; the stage that it enters
divides by that and multiplies by its own. What overflowed stays infinite, so the stage in front skips its update, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from parallel_core.plan.traffic import MARK_BYTES


def marked(grad: Tensor, scale: float) -> Tensor:
    """The message: the elements of `grad`, then the fp32 number `scale` in the memory of as many as it takes."""
    mark = torch.full((1,), scale, dtype=torch.float32, device=grad.device)
    return torch.cat([grad.flatten(), mark.view(grad.dtype)])


def rescaled(message: Tensor, shape: Sequence[int], scale: float) -> Tensor:
    """The gradient of a message, multiplied by `scale` in place of what it came with; in the message's memory."""
    mark = MARK_BYTES // message.itemsize
    sent = message[-mark:].clone().view(torch.float32)
    grad = message[:-mark].view(tuple(shape))
    return grad.copy_(grad.float() * (scale / sent))  # on the device: nobody waits until the message is there
