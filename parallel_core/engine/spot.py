"""What autograd saves of weights, kept as a place in their memory: a backward may then find other values there.

It saves parameters as objects, so they may be pointed elsewhere before the backward; but of some it saves views (the
matrices of an LSTM), which hold on to the memory of the forward.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor


class Spot(NamedTuple):
    """Where a tensor lies in a memory: counted in elements from the begin of its storage."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor, memory: Tensor) -> Self | None:
        """None where it lies elsewhere."""
        if tensor.untyped_storage().data_ptr() != memory.untyped_storage().data_ptr():
            return None
        return cls(tensor.shape, tensor.stride(), int(tensor.storage_offset()))

    def within(self, memory: Tensor) -> Tensor:
        """What lies at this place of another memory of the same kind."""
        return memory.as_strided(self.size, self.stride, self.offset)
