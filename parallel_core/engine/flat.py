"""Parameters and gradients of a rank as two flat buffers that the tensors of the model are views of.

Gradients have the number type of `precision.main_dtype`: in 16-bit runs autograd adds its 16-bit results to fp32.

One buffer means one optimizer kernel, one memset, and gradient buckets that are slices: nothing is copied to be sent.
Under ZeRO (Rajbhandari et al. 2020) a replica owns one part of every bucket; without, all of the buffers. Under ZeRO-2
the gradient buffer has what is owned alone (`engine.lean` makes the whole buckets, and lets them go), under ZeRO-3 that
of the values, too (`engine.unshard`). Starts and stops count elements of the whole, wherever they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from parallel_core.engine.device import Device
from parallel_core.engine.precision import main_dtype
from parallel_core.plan.grad_buckets import BUCKET_BYTES, Home, Places, place

Pieces = tuple[tuple[int, Tensor], ...]
"""(first, memory): elements [first, first + len(memory)) of the whole flat buffer."""


@dataclass(frozen=True)
class Slot:
    """One parameter's place in the flat buffers. `names` are (unit, local name) pairs: several where it is tied."""

    name: str
    parameter: nn.Parameter
    start: int
    stop: int


@dataclass(frozen=True)
class Shard:
    """Replica `index` of `count` owns its part of each bucket; parameters in `alone` have a bucket of their own.

    `lean`: it keeps the gradients of its parts alone; `sliced`: the values, too. `bucket` = bytes from which a bucket
    is sent, None = the device's; parameters whose `homes` differ (`places.home`; unnamed: none) share none.
    """

    count: int = 1
    index: int = 0
    alone: frozenset[str] = frozenset()
    lean: bool = False
    sliced: bool = False
    bucket: int | None = None
    homes: Mapping[str, Home] = field(default_factory=dict)

    def places(self, sizes: Mapping[str, int], device: Device, item: int) -> Places:
        """Of parameters of `sizes` elements, whose gradients have `item` bytes each."""
        bucket = None if self.sliced else (self.bucket or BUCKET_BYTES[device.kind]) // item
        return place(sizes, bucket, self.count, self.alone, lambda name: self.homes.get(name, ()))


class FlatParameters:
    """Moves the parameters of `units` (global unit name -> layer, maybe on meta) into flat buffers.

    Places are those of `plan.places`, and `slots` is in their order. Padding holds zeros and stays zero.
    """

    def __init__(
        self,
        named: list[tuple[str, nn.Module, str]],
        dtype: torch.dtype,
        device: Device,
        shard: Shard = Shard(),
    ) -> None:
        """`named` = (global parameter name, module that holds it, attribute) in layer order."""
        shapes = {name: getattr(module, attribute).shape for name, module, attribute in named}
        main = main_dtype(dtype)
        sizes = {name: shape.numel() for name, shape in shapes.items()}
        places = shard.places(sizes, device, main.itemsize)
        self.lean, self.sliced, self.size = shard.lean, shard.sliced, places.size
        self.sharded = shard.count > 1
        part = places.size // shard.count
        self.values = torch.zeros(part if shard.sliced else places.size, dtype=dtype, device=device.torch)
        self.grads = torch.zeros(part if shard.lean else places.size, dtype=main, device=device.torch)
        self.buckets = places.buckets
        self.wired = places.pieces(main.itemsize)
        """Their parts that are summed one by one where they go from one CPU host to another, nothing being sharded."""
        self.parts = [bucket.part(shard.index, shard.count) for bucket in places.buckets]
        """What this replica owns of each bucket."""
        self.owned = self.parts if shard.count > 1 else [slice(0, places.size)]
        """The same, in as few pieces as it can be."""
        sizes_owned = [piece.stop - piece.start for piece in self.owned]
        self.mine = self.grads.split(sizes_owned) if shard.lean else [self.grads[piece] for piece in self.owned]
        """The gradients of `owned`, piece by piece."""
        self.held = self.values.split(sizes_owned) if shard.sliced else [self.values[piece] for piece in self.owned]
        """The values of `owned`, piece by piece."""
        self.slots = [self._slot(name, shapes[name], start) for name, start in places.starts.items()]
        by_name = {slot.name: slot.parameter for slot in self.slots}
        for name, module, attribute in named:
            setattr(module, attribute, by_name[name])

    def _slot(self, name: str, shape: torch.Size, start: int) -> Slot:
        stop = start + shape.numel()
        values = hollow(self.values, shape) if self.sliced else self.values[start:stop].view(shape)
        parameter = nn.Parameter(values)
        parameter.grad_dtype = None  # lets a gradient be wider than its parameter, and be added to without a copy
        if not self.lean:
            parameter.grad = self.grads[start:stop].view(shape)
        return Slot(name, parameter, start, stop)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots)

    def named(self) -> dict[str, Tensor]:
        """Global name -> this rank's share of the parameter. Under ZeRO-3 it is whole only while it works."""
        return {slot.name: slot.parameter.detach() for slot in self.slots}

    def named_grads(self) -> dict[str, Tensor]:
        """Global name -> this rank's share of the gradient; without those that are nowhere whole."""
        return {slot.name: slot.parameter.grad for slot in self.slots if slot.parameter.grad is not None}

    def owned_grads(self) -> dict[str, Tensor]:
        """Global name -> the elements of its gradient that this replica owns (flat, maybe none)."""
        parts = self.mine if self.lean else [self.grads[part] for part in self.parts]
        return {name: elements for name, (_, elements) in self._owned(parts).items()}

    def owned_values(self) -> dict[str, tuple[int, Tensor]]:
        """Global name -> the elements of it that this replica owns, and the number of the first one."""
        return self._owned(self.held if self.sliced else [self.values[part] for part in self.parts])

    def _owned(self, parts: Sequence[Tensor]) -> dict[str, tuple[int, Tensor]]:
        """Of `parts`, those of the buckets: by name (first element within the parameter, its elements)."""
        out: dict[str, tuple[int, Tensor]] = {}
        at = {slot.name: slot for slot in self.slots}
        for bucket, part, elements in zip(self.buckets, self.parts, parts, strict=True):
            for slot in (at[name] for name in bucket.names):
                start, stop = (min(max(edge, part.start), part.stop) for edge in (slot.start, slot.stop))
                out[slot.name] = start - slot.start, elements[start - part.start : stop - part.start]
        return out

    @property
    def stores(self) -> Sequence[Tensor]:
        """The memory of the values."""
        return [self.values]

    def buffers(self) -> dict[str, Pieces]:
        """What a checkpoint keeps of the values, by kind."""
        return {"value": self.pieces()}

    def pieces(self) -> Pieces:
        """The values that this rank has, for a checkpoint."""
        if not self.sliced:
            return ((0, self.values),)
        return tuple((piece.start, values) for piece, values in zip(self.owned, self.held, strict=True))

    def fill(self, slot: Slot, make: Callable[[Tensor], object]) -> None:
        """Gives a parameter what `make` writes into a tensor of its shape: where it is not whole here, into one that
        is let go again."""
        if not self.sliced:
            make(slot.parameter)
            return
        whole = torch.zeros(slot.parameter.shape, dtype=self.values.dtype, device=self.values.device)
        make(whole)
        first, elements = self.owned_values()[slot.name]
        elements.copy_(whole.view(-1)[first : first + len(elements)])


def hollow(like: Tensor, shape: torch.Size) -> Tensor:
    """What stands for a parameter that is elsewhere: its shape, no memory, and nothing that passes for a number."""
    return like.new_full((), float("nan")).expand(shape)
