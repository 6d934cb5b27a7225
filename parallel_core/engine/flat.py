"""Parameters and gradients of a rank as two flat buffers; the tensors of the model are views of them.

Gradients have the dtype `precision.main_dtype`: in 16-bit runs autograd accumulates its 16-bit results in fp32.

With one buffer the optimizer is one kernel, clearing gradients is one memset, and gradient buckets are slices that
are sent without a copy. Under ZeRO (Rajbhandari et al. 2020) a replica owns one part of every bucket; otherwise it
owns all of the buffers. Under ZeRO-2 the gradient buffer holds the owned parts only (`engine.zero2` allocates whole
buckets and frees them), under ZeRO-3 so does the buffer of values (`engine.zero3`). Element numbers (starts and
stops) always refer to the whole buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from parallel_core.engine.device import Device
from parallel_core.engine.precision import main_dtype
from parallel_core.plan.grad_buckets import BUCKET_BYTES, BucketKey, Places, place

Pieces = tuple[tuple[int, Tensor], ...]
"""(first, memory) pairs: `memory` holds elements [first, first + len(memory)) of the whole flat buffer."""


@dataclass(frozen=True)
class Slot:
    """The position of one parameter in the flat buffers: elements [start, stop)."""

    name: str
    parameter: nn.Parameter
    start: int
    stop: int


@dataclass(frozen=True)
class Shard:
    """How the flat buffers are sharded: replica `index` of `count` owns its part of each bucket.

    Each parameter in `alone` has a bucket of its own. `shard_grads`: keep the gradients of owned parts only (ZeRO-2);
    `shard_values`: the values, too (ZeRO-3). `bucket`: bytes from which a bucket is closed, None = the device's
    default. Parameters with different `bucket_keys` (`grad_buckets.bucket_key`; empty for those not listed) do not
    share a bucket.
    """

    count: int = 1
    index: int = 0
    alone: frozenset[str] = frozenset()
    shard_grads: bool = False
    shard_values: bool = False
    bucket: int | None = None
    bucket_keys: Mapping[str, BucketKey] = field(default_factory=dict)

    def places(self, sizes: Mapping[str, int], device: Device, item: int) -> Places:
        """Returns the positions of parameters; `sizes`: name -> elements, `item`: bytes of a gradient element."""
        bucket = None if self.shard_values else (self.bucket or BUCKET_BYTES[device.kind]) // item
        return place(sizes, bucket, self.count, self.alone, lambda name: self.bucket_keys.get(name, ()))


class FlatParameters:
    """Moves parameters (which may be on the meta device) into flat buffers, with the positions of `plan.grad_buckets`.

    `slots` is in the order of positions. Padding holds zeros and stays zero.
    """

    def __init__(
        self,
        named: list[tuple[str, nn.Module, str]],
        dtype: torch.dtype,
        device: Device,
        shard: Shard = Shard(),
        trains: bool = True,
    ) -> None:
        """`named` = (global parameter name, module that holds it, attribute) in layer order. `trains` False: there are
        no gradients, and no memory for them."""
        shapes = {name: getattr(module, attribute).shape for name, module, attribute in named}
        main = main_dtype(dtype)
        sizes = {name: shape.numel() for name, shape in shapes.items()}
        places = shard.places(sizes, device, main.itemsize)
        self.shard_grads, self.shard_values, self.size = shard.shard_grads, shard.shard_values, places.size
        self.sharded = shard.count > 1
        part = places.size // shard.count
        self.values = torch.zeros(part if shard.shard_values else places.size, dtype=dtype, device=device.torch)
        kept = (part if shard.shard_grads else places.size) if trains else 0
        self.grads = torch.zeros(kept, dtype=main, device=device.torch)
        self.buckets = places.buckets
        self.wired = places.pieces(main.itemsize)
        """The smaller pieces that are reduced one by one where CPU ranks on several hosts reduce unsharded buckets."""
        self._take_own(shard)
        self.slots = [self._slot(name, shapes[name], start) for name, start in places.starts.items()]
        by_name = {slot.name: slot.parameter for slot in self.slots}
        for name, module, attribute in named:
            setattr(module, attribute, by_name[name])

    def _take_own(self, shard: Shard) -> None:
        """Finds what this replica owns of the buffers."""
        self.parts = [bucket.part(shard.index, shard.count) for bucket in self.buckets]
        """The elements that this replica owns of each bucket."""
        self.owned = self.parts if shard.count > 1 else [slice(0, self.size)]
        """The same elements in as few slices as possible: one where nothing is sharded."""
        sizes_owned = [piece.stop - piece.start for piece in self.owned]
        self.mine = self.grads.split(sizes_owned) if shard.shard_grads else [self.grads[piece] for piece in self.owned]
        """The gradients of each slice of `owned`."""
        values = self.values
        self.held = values.split(sizes_owned) if shard.shard_values else [values[piece] for piece in self.owned]
        """The values of each slice of `owned`."""

    def _slot(self, name: str, shape: torch.Size, start: int) -> Slot:
        stop = start + shape.numel()
        values = placeholder(self.values, shape) if self.shard_values else self.values[start:stop].view(shape)
        parameter = nn.Parameter(values)
        parameter.grad_dtype = None  # allows a gradient wider than its parameter, accumulated without a copy
        if not self.shard_grads and len(self.grads):
            parameter.grad = self.grads[start:stop].view(shape)
        return Slot(name, parameter, start, stop)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots)

    def named(self) -> dict[str, Tensor]:
        """Global name -> this rank's share of the parameter. Under ZeRO-3 it is whole only while its layer runs."""
        return {slot.name: slot.parameter.detach() for slot in self.slots}

    def owned_grads(self) -> dict[str, Tensor]:
        """Returns global name -> the elements of its gradient that this replica owns (flat, possibly empty)."""
        parts = self.mine if self.shard_grads else [self.grads[part] for part in self.parts]
        return {name: elements for name, (_, elements) in self._owned(parts).items()}

    def owned_values(self) -> dict[str, tuple[int, Tensor]]:
        """Returns global name -> (number of the first owned element within the parameter, the owned elements)."""
        return self._owned(self.held if self.shard_values else [self.values[part] for part in self.parts])

    def _owned(self, parts: Sequence[Tensor]) -> dict[str, tuple[int, Tensor]]:
        """Returns name -> (first element within the parameter, its elements) from `parts`, one per bucket."""
        out: dict[str, tuple[int, Tensor]] = {}
        at = {slot.name: slot for slot in self.slots}
        for bucket, part, elements in zip(self.buckets, self.parts, parts, strict=True):
            for slot in (at[name] for name in bucket.names):
                start, stop = (min(max(edge, part.start), part.stop) for edge in (slot.start, slot.stop))
                out[slot.name] = start - slot.start, elements[start - part.start : stop - part.start]
        return out

    @property
    def stores(self) -> Sequence[Tensor]:
        """The tensors that hold the values."""
        return [self.values]

    def buffers(self) -> dict[str, Pieces]:
        """Returns the values that a checkpoint saves, by kind."""
        return {"value": self.pieces()}

    def loaded_buffers(self) -> dict[str, Pieces]:
        """Returns those of `buffers` that a checkpoint fills: the others are rounded from these when they are asked
        for."""
        return self.buffers()

    def pieces(self) -> Pieces:
        """Returns the values that this rank has, with their positions."""
        if not self.shard_values:
            return ((0, self.values),)
        return tuple((piece.start, values) for piece, values in zip(self.owned, self.held, strict=True))

    def fill(self, first: Callable[[str, Tensor], object]) -> None:
        """Initializes every parameter: `first` writes the values of the named one into a tensor of its shape.

        Where parameters are not whole on this rank, that tensor is temporary and the owned elements are copied from it.
        """
        owned = self.owned_values() if self.shard_values else {}
        for slot in self.slots:
            if not self.shard_values:
                first(slot.name, slot.parameter)
                continue
            whole = torch.zeros(slot.parameter.shape, dtype=self.values.dtype, device=self.values.device)
            first(slot.name, whole)
            at, elements = owned[slot.name]
            elements.copy_(whole.view(-1)[at : at + len(elements)])


def placeholder(like: Tensor, shape: torch.Size) -> Tensor:
    """Returns a placeholder for a parameter that is not gathered: its shape, NaN values, no memory of its own."""
    return like.new_full((), float("nan")).expand(shape)
