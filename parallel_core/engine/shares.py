"""A rank's shares of full tensors, described for torch.distributed.checkpoint (DCP): boxes of each tensor, by name.

A `Share` implements DCP's protocol for custom checkpointable objects (`torch.distributed._checkpointable`), so that its
planners determine what is written where and, under another layout, which part of which saved piece is loaded where.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType


class Box(NamedTuple):
    """A box within a tensor: elements [offset, offset + size) in each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class Share:
    """Boxes of a tensor whose full shape is `shape`, each with the (contiguous) memory that holds it."""

    def __init__(self, shape: Sequence[int], parts: Sequence[tuple[Box, Tensor]]) -> None:
        self._shape = torch.Size(shape)
        self._parts = {torch.Size(box.offsets): memory.view(box.sizes) for box, memory in parts}

    def size(self) -> torch.Size:
        return self._shape

    def at(self, offsets: torch.Size) -> Tensor:
        """Returns the memory of the box that begins at `offsets`."""
        return self._parts[offsets]

    def parts(self) -> list[tuple[Box, Tensor]]:
        """Returns the boxes, each with its memory in the shape of the box."""
        return [(Box(tuple(offsets), tuple(memory.shape)), memory) for offsets, memory in self._parts.items()]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(offsets, memory.shape) for offsets, memory in self._parts.items()]

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, TensorProperties(self.at(chunk.offsets).dtype), self._shape),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        assert index.offset is not None
        return self.at(index.offset)


class ComputedShare(Share):
    """A whole tensor of dtype `dtype` that `make` computes each time it is read."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, make: Callable[[], Tensor]) -> None:
        super().__init__(shape, [])
        self._dtype, self._make = dtype, make

    def at(self, offsets: torch.Size) -> Tensor:
        return self._make().to(self._dtype)

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size((0,) * len(self._shape)), self._shape)]

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        (chunk,) = self.__create_chunk_list__()
        data = TensorWriteData(chunk, TensorProperties(self._dtype), self._shape)
        return [WriteItem(index=MetadataIndex(name, chunk.offsets), type=WriteItemType.SHARD, tensor_data=data)]


def boxes(shape: Sequence[int], start: int, stop: int) -> list[Box]:
    """Elements [start, stop) of a row-major tensor of this shape as boxes, in order: at most 2 x dimensions - 1."""
    if start >= stop:
        return []
    if not shape:
        return [Box((), ())]
    inner = math.prod(shape[1:])
    first, last = start // inner, (stop - 1) // inner
    if first == last or len(shape) == 1:
        if len(shape) == 1:
            return [Box((start,), (stop - start,))]
        return _in_row(shape, first, start - first * inner, stop - first * inner)
    head, tail = start % inner, stop % inner
    whole = range(first + bool(head), last + (not tail))
    found = _in_row(shape, first, head, inner) if head else []
    if whole:
        found.append(Box((whole.start, *(0 for _ in shape[1:])), (len(whole), *shape[1:])))
    return found + (_in_row(shape, last, 0, tail) if tail else [])


def _in_row(shape: Sequence[int], row: int, start: int, stop: int) -> list[Box]:
    return [Box((row, *box.offsets), (1, *box.sizes)) for box in boxes(shape[1:], start, stop)]


def split(shape: Sequence[int], origin: Sequence[int], memory: Tensor, local: Sequence[int], start: int) -> Any:
    """Returns (box of the full tensor, its memory) pairs for elements [start, start + len(memory)) of a local tensor.

    The local tensor has shape `local` and begins at `origin` of the full tensor.
    """
    found, at = [], 0
    for box in boxes(local, start, start + memory.numel()):
        count = math.prod(box.sizes)
        place = tuple(a + b for a, b in zip(origin, box.offsets, strict=True))
        found.append((Box(place, box.sizes), memory[at : at + count]))
        at += count
    return found
