"""Gradients sent between stages that each have their own loss scale (fp16 without a flush).

A message carries the sender's loss scale after the gradient itself; the receiving stage divides by it and multiplies
by its own. Overflowed values stay infinite, so the previous stage skips its update, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from parallel_core.plan.traffic import MARK_BYTES


def marked(grad: Tensor, scale: float) -> Tensor:
    """Returns the message: the elements of `grad`, then the fp32 number `scale` in as many elements as it needs."""
    mark = torch.full((1,), scale, dtype=torch.float32, device=grad.device)
    return torch.cat([grad.flatten(), mark.view(grad.dtype)])


def rescaled(message: Tensor, shape: Sequence[int], scale: float) -> Tensor:
    """The gradient of a message, rescaled from the sender's loss scale to `scale`; in the memory of the message."""
    mark = MARK_BYTES // message.itemsize
    sent = message[-mark:].clone().view(torch.float32)
    grad = message[:-mark].view(tuple(shape))
    return grad.copy_(grad.float() * (scale / sent))  # on the device: the host does not wait for the message
