"""Keys and values of what was generated so far, kept so that the next token attends to them without making them again
(Pope et al. 2022, "Efficiently Scaling Transformer Inference", section 2.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class KvCache:
    """Of one attention layer on one rank: (batch, key heads of this rank, capacity, dim) of each."""

    def __init__(self, batch: int, heads: int, capacity: int, dim: int, **like: Any) -> None:
        self.capacity, self.length = capacity, 0
        self._keys, self._values = torch.zeros(2, batch, heads, capacity, dim, **like)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Takes those of the next places (batch, heads, n, dim); returns those of all places so far (views)."""
        end = self.length + k.shape[2]
        self._keys[:, :, self.length : end] = k
        self._values[:, :, self.length : end] = v
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._values.nbytes
