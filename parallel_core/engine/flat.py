"""Parameters and gradients of a rank as two flat buffers that the tensors of the model are views of.

Gradients have the number type of `precision.main_dtype`: in 16-bit runs autograd adds its 16-bit results to fp32.

One buffer means one optimizer kernel, one memset, and gradient buckets that are slices: nothing is copied to be sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from parallel_core.engine.device import Device
from parallel_core.engine.precision import main_dtype

ALIGN = 64
"""Elements a parameter's place is rounded up to, so that vector loads stay aligned."""


@dataclass(frozen=True)
class Slot:
    """One parameter's place in the flat buffers. `names` are (unit, local name) pairs: several where it is tied."""

    name: str
    parameter: nn.Parameter
    start: int
    stop: int


class FlatParameters:
    """Moves the parameters of `units` (global unit name -> layer, maybe on meta) into flat buffers.

    Places go from the last layer to the first: the order in which backward finishes gradients. `slots` is in that
    order. Padding holds zeros and stays zero.
    """

    def __init__(self, named: list[tuple[str, nn.Module, str]], dtype: torch.dtype, device: Device) -> None:
        """`named` = (global parameter name, module that holds it, attribute) in layer order."""
        shapes = {name: getattr(module, attribute).shape for name, module, attribute in named}
        starts, size = {}, 0
        # A tied parameter is complete only when its first layer is done: dict order keeps the first place it had.
        for name in reversed(shapes):
            starts[name] = size
            size += -(-shapes[name].numel() // ALIGN) * ALIGN
        self.values = torch.zeros(size, dtype=dtype, device=device.torch)
        self.grads = torch.zeros(size, dtype=main_dtype(dtype), device=device.torch)
        self.slots = [self._slot(name, shapes[name], start) for name, start in starts.items()]
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
