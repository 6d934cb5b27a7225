"""Replaces views of weights saved by autograd by their position in a buffer, so that backward reads what the buffer
then holds.

Autograd saves parameters as objects, whose `data` may be replaced before the backward. But of some layers it saves
views of parameters (the matrices of an LSTM), which keep the buffer used in the forward alive.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import torch
from torch import Tensor


class BufferView(NamedTuple):
    """The position of a tensor in a buffer, in elements from the beginning of its storage."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor, memory: Tensor) -> Self | None:
        """Returns the position of `tensor` in the storage of `memory`; None where it lies in another storage."""
        if tensor.untyped_storage().data_ptr() != memory.untyped_storage().data_ptr():
            return None
        return cls(tensor.shape, tensor.stride(), int(tensor.storage_offset()))

    def within(self, memory: Tensor) -> Tensor:
        """Returns the view at this position of another buffer with the same layout."""
        return memory.as_strided(self.size, self.stride, self.offset)
