"""The gradients of a rank's parameters."""

from __future__ import annotations

from torch import Tensor

from parallel_core.engine.flat import FlatParameters
from parallel_core.engine.fully_sharded import FullySharded


def named_grads(flat: FlatParameters) -> dict[str, Tensor]:
    """Global name -> this rank's share of the gradient, without gradients that are nowhere whole (ZeRO-2 and 3)."""
    if isinstance(flat, FullySharded):
        return {}
    return {slot.name: slot.parameter.grad for slot in flat.slots if slot.parameter.grad is not None}


def grad_of(tensor: Tensor | None) -> Tensor:
    """The gradient of a tensor that a backward pass has reached."""
    assert tensor is not None and tensor.grad is not None
    return tensor.grad
