"""Parameters and gradients of a rank as two flat buffers that the tensors of the model are views of.

Gradients have the number type of `precision.main_dtype`: in 16-bit runs autograd adds its 16-bit results to fp32.

One buffer means one optimizer kernel, one memset, and gradient buckets that are slices: nothing is copied to be sent.
Under ZeRO (Rajbhandari et al. 2020) a replica owns one part of every bucket; without, all of the buffers. Under ZeRO-2
the gradient buffer has what is owned alone (`engine.lean` makes the whole buckets, and lets them go).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from parallel_core.engine.device import Device
from parallel_core.engine.precision import main_dtype
from parallel_core.plan.places import BUCKET_BYTES, Places, place


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

    `lean`: it keeps the gradients of its parts alone. `bucket` = bytes from which a bucket is sent, None = the
    device's; parameters whose `stage_of` differs (unnamed: 0) share none.
    """

    count: int = 1
    index: int = 0
    alone: frozenset[str] = frozenset()
    lean: bool = False
    bucket: int | None = None
    stage_of: Mapping[str, int] = field(default_factory=dict)

    def places(self, sizes: Mapping[str, int], device: Device, item: int) -> Places:
        """Of parameters of `sizes` elements, whose gradients have `item` bytes each."""
        bucket = (self.bucket or BUCKET_BYTES[device.kind]) // item
        return place(sizes, bucket, self.count, self.alone, lambda name: self.stage_of.get(name, 0))


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
        self.lean = shard.lean
        self.values = torch.zeros(places.size, dtype=dtype, device=device.torch)
        kept = places.size // shard.count if shard.lean else places.size
        self.grads = torch.zeros(kept, dtype=main, device=device.torch)
        self.buckets = places.buckets
        self.parts = [bucket.part(shard.index, shard.count) for bucket in places.buckets]
        """What this replica owns of each bucket."""
        self.owned = self.parts if shard.count > 1 else [slice(0, places.size)]
        """The same, in as few pieces as it can be."""
        sizes_owned = [piece.stop - piece.start for piece in self.owned]
        self.mine = self.grads.split(sizes_owned) if shard.lean else [self.grads[piece] for piece in self.owned]
        """The gradients of `owned`, piece by piece."""
        self.slots = [self._slot(name, shapes[name], start) for name, start in places.starts.items()]
        by_name = {slot.name: slot.parameter for slot in self.slots}
        for name, module, attribute in named:
            setattr(module, attribute, by_name[name])

    def _slot(self, name: str, shape: torch.Size, start: int) -> Slot:
        stop = start + shape.numel()
        parameter = nn.Parameter(self.values[start:stop].view(shape))
        parameter.grad_dtype = None  # lets a gradient be wider than its parameter, and be added to without a copy
        if not self.lean:
            parameter.grad = self.grads[start:stop].view(shape)
        return Slot(name, parameter, start, stop)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots)

    def named(self) -> dict[str, Tensor]:
        """Global name -> this rank's share of the parameter."""
        return {slot.name: slot.parameter.detach() for slot in self.slots}

    def named_grads(self) -> dict[str, Tensor]:
        """Global name -> this rank's share of the gradient; without those that are nowhere whole."""
        return {slot.name: slot.parameter.grad for slot in self.slots if slot.parameter.grad is not None}

    def owned_grads(self) -> dict[str, Tensor]:
        """Global name -> the elements of its gradient that this replica owns (flat, maybe none)."""
        out: dict[str, Tensor] = {}
        at = {slot.name: slot for slot in self.slots}
        for bucket, part, grads in zip(self.buckets, self.parts, self._grads_of_parts(), strict=True):
            for slot in (at[name] for name in bucket.names):
                start, stop = (min(max(edge, part.start), part.stop) for edge in (slot.start, slot.stop))
                out[slot.name] = grads[start - part.start : stop - part.start]
        return out

    def _grads_of_parts(self) -> Sequence[Tensor]:
        """Of each bucket, the gradients that this replica owns."""
        return self.mine if self.lean else [self.grads[part] for part in self.parts]
