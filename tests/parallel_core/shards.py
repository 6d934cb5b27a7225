"""The slice of a full parameter that a tensor rank holds, by the rule alone: to compare the engine with."""

from __future__ import annotations

from torch import Tensor

from parallel_core.outline.splits import TensorSplit, split_dim


def shard(full: Tensor, name: str, rank: int, size: int, how: TensorSplit = "pairs") -> Tensor:
    """That of rank `rank` of `size` of the full parameter `name` (a view)."""
    dim = split_dim(name, how)
    return full if dim is None or size == 1 else full.chunk(size, dim)[rank]
