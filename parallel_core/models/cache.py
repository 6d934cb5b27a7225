"""The key-value cache of text generation: keys and values of earlier positions, so that they are not computed again for
each token (Pope et al. 2022, "Efficiently Scaling Transformer Inference", section 2.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class KvCache:
    """Keys and values of one attention layer on one rank, [batch, key heads of this rank, capacity, dim] each."""

    def __init__(self, batch: int, heads: int, capacity: int, dim: int, **like: Any) -> None:
        self.capacity, self.length = capacity, 0
        self._keys, self._values = torch.zeros(2, batch, heads, capacity, dim, **like)

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Appends keys and values of the next positions [batch, heads, n, dim]; returns those of all positions so far
        (views)."""
        end = self.length + k.shape[2]
        self._keys[:, :, self.length : end] = k
        self._values[:, :, self.length : end] = v
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._values.nbytes
