"""First values of parameters: a function of (seed, name, shape) alone, so that every layout starts from the same ones.

Each parameter is drawn from a generator of its own, some rows at a time, and a rank keeps only what it is to hold:
beyond its slice it never has more than BLOCK numbers or 16 rows, whatever the size of the model. Values are drawn in
fp32 on the CPU and cast, so precision and device do not change them either.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from parallel_core.models.registry import KINDS
from parallel_core.spec import ModelSpec

BLOCK = 1 << 20
GROUP = 16
"""torch.normal_ on a CPU makes so many normal numbers out of as many uniform ones, group by group: drawing whole groups
one block after the other gives the bits of drawing everything at once. Only the last group may be short."""


@torch.no_grad()
def fill(
    target: Tensor, model: ModelSpec, seed: int, name: str, shape: tuple[int, ...], dim: int = 0, at: int = 0
) -> None:
    """Give `target` the first values of elements `at`, `at` + 1, .. in dimension `dim` of the full parameter `name`.

    The full one has `shape`, and `target` its size in every other dimension; dimension 1 of matrices only. Norm gains
    are 1, biases 0, weights normal with the kind's spread.
    """
    layer, kind = name.rsplit(".", 2)[-2:]
    if (kind == "weight" and layer.startswith("norm")) or kind.startswith("bias"):
        target.fill_(float(kind == "weight"))
        return
    std: float = KINDS[model.kind].spread(model, name, shape)
    if dim == 1:
        for row, drawn in _rows(shape, std, seed, name):
            target[row : row + len(drawn)] = drawn[:, at : at + target.shape[1]]
        return
    for row, drawn in _rows(shape, std, seed, name):
        first, last = max(row, at), min(row + len(drawn), at + len(target))
        if first < last:
            target[first - at : last - at] = drawn[first - row : last - row].view(-1, *shape[1:])
        if row + len(drawn) >= at + len(target):
            return  # what is left belongs to others


def initial(model: ModelSpec, seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """Full value of parameter `name`, fp32 on the CPU."""
    out = torch.empty(shape)
    fill(out, model, seed, name, shape)
    return out


def _rows(shape: tuple[int, ...], std: float, seed: int, name: str) -> Iterator[tuple[int, Tensor]]:
    """(number of the first row, rows) of the whole parameter as a matrix, block by block in order."""
    key = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)
    columns = math.prod(shape[1:])
    size, count = columns * GROUP * max(1, BLOCK // (columns * GROUP)), math.prod(shape)
    for first in range(0, count if count >= GROUP else 1, size):
        last = first + size >= count - GROUP + 1  # a rest of less than a group comes with the block before it
        drawn = torch.empty((count if last else first + size) - first).normal_(0.0, std, generator=generator)
        yield first // columns, drawn.view(-1, columns)
        if last:
            return
