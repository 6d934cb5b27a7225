"""Parameters and gradients of a rank as two flat buffers that the tensors of the model are views of.

Gradients have the number type of `precision.main_dtype`: in 16-bit runs autograd adds its 16-bit results to fp32.

One buffer means one optimizer kernel, one memset, and gradient buckets that are slices: nothing is copied to be sent.
Under ZeRO (Rajbhandari et al. 2020) a replica owns one part of every bucket; without, all of the buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from parallel_core.engine.device import Device
from parallel_core.engine.precision import main_dtype
from parallel_core.plan.places import BUCKET_BYTES, place


@dataclass(frozen=True)
class Slot:
    """One parameter's place in the flat buffers. `names` are (unit, local name) pairs: several where it is tied."""

    name: str
    parameter: nn.Parameter
    start: int
    stop: int


@dataclass(frozen=True)
class Shard:
    """Replica `index` of `count` owns its part of each bucket; parameters in `alone` have a bucket of their own."""

    count: int = 1
    index: int = 0
    alone: frozenset[str] = frozenset()


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
        places = place(sizes, BUCKET_BYTES[device.kind] // main.itemsize, shard.count, shard.alone)
        self.values = torch.zeros(places.size, dtype=dtype, device=device.torch)
        self.grads = torch.zeros(places.size, dtype=main, device=device.torch)
        self.buckets = places.buckets
        self.parts = [bucket.part(shard.index, shard.count) for bucket in places.buckets]
        """What this replica owns of each bucket."""
        self.owned = self.parts if shard.count > 1 else [slice(0, places.size)]
        """The same, in as few pieces as it can be."""
        self.slots = [self._slot(name, shapes[name], start) for name, start in places.starts.items()]
        by_name = {slot.name: slot.parameter for slot in self.slots}
        for name, module, attribute in named:
            setattr(module, attribute, by_name[name])

    def _slot(self, name: str, shape: torch.Size, start: int) -> Slot:
        stop = start + shape.numel()
        parameter = nn.Parameter(self.values[start:stop].view(shape))
        parameter.grad_dtype = None  # lets a gradient be wider than its parameter, and be added to without a copy
        parameter.grad = self.grads[start:stop].view(shape)
        return Slot(name, parameter, start, stop)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots)

    def named(self) -> dict[str, Tensor]:
        """Global name -> this rank's share of the parameter."""
        return {slot.name: slot.parameter.detach() for slot in self.slots}

    def named_grads(self) -> dict[str, Tensor]:
        """Global name -> this rank's share of the gradient."""
        return {slot.name: self.grads[slot.start : slot.stop].view_as(slot.parameter) for slot in self.slots}

    def owned_grads(self) -> dict[str, Tensor]:
        """Global name -> the elements of its gradient that this replica owns (flat, maybe none)."""
        part_of = {name: part for bucket, part in zip(self.buckets, self.parts, strict=True) for name in bucket.names}
        out = {}
        for slot in self.slots:
            start, stop = max(slot.start, part_of[slot.name].start), min(slot.stop, part_of[slot.name].stop)
            out[slot.name] = self.grads[start : max(start, stop)]
        return out
