"""Initial values of parameters: a function of (seed, name, shape) only, so that they are the same under every layout.

Each parameter is drawn from its own generator, in blocks of rows, and a rank keeps only the part it needs: in
addition to that it never holds more than BLOCK numbers or 16 rows, whatever the size of the model. Values are drawn
in fp32 on the CPU and cast, so precision and device do not change them either.
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
"""torch.normal_ on a CPU transforms uniform numbers to normal ones in groups of this size: drawing in blocks of whole
groups gives the same bits as drawing everything at once. Only the last group may be short."""


@torch.no_grad()
def fill(
    target: Tensor, model: ModelSpec, seed: int, name: str, shape: tuple[int, ...], dim: int = 0, at: int = 0
) -> None:
    """Fills `target` with the initial values of elements `at`, `at` + 1, .. in dimension `dim` of the full parameter
    `name`.

    The full parameter has `shape`; `target` has the same size in every other dimension. `dim` is 0, or 1 for matrices.
    Norm gains are 1, biases 0, weights normal with the standard deviation of the model's `spread`.
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
            return  # the remaining rows belong to other ranks


def initial(model: ModelSpec, seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """Returns the full initial value of parameter `name`, fp32 on the CPU."""
    out = torch.empty(shape)
    fill(out, model, seed, name, shape)
    return out


def _rows(shape: tuple[int, ...], std: float, seed: int, name: str) -> Iterator[tuple[int, Tensor]]:
    """Yields (number of the first row, rows) of the whole parameter as a matrix, block by block in order."""
    key = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)
    columns = math.prod(shape[1:])
    size, count = columns * GROUP * max(1, BLOCK // (columns * GROUP)), math.prod(shape)
    for first in range(0, count if count >= GROUP else 1, size):
        last = first + size >= count - GROUP + 1  # a remainder of less than a group is drawn with the block before it
        drawn = torch.empty((count if last else first + size) - first).normal_(0.0, std, generator=generator)
        yield first // columns, drawn.view(-1, columns)
        if last:
            return
