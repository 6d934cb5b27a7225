"""Builds the layers of any model by name, and lists their parameters."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import nn

from parallel_core.models import gnmt, gpt, mlp, resnet50, vgg16
from parallel_core.spec import ModelSpec

KINDS: dict[str, ModuleType] = {"gpt": gpt, "mlp": mlp, "vgg16": vgg16, "resnet50": resnet50, "gnmt": gnmt}
"""Kind -> module with `build(model, name, **like)`, which returns a layer at its full size, `spread(model, name,
shape)`, the standard deviation of a weight's initial values, and `TIED` if parameters can be tied."""


def build_unit(model: ModelSpec, name: str, dtype: torch.dtype, device: str = "meta") -> nn.Module:
    """Returns the layer called `name` (of `ModelSpec.units`) at its full size; on 'meta' it occupies no memory."""
    unit: nn.Module = KINDS[model.kind].build(model, name, dtype=dtype, device=device)
    return unit


def parameter_name(model: ModelSpec, unit: str, local: str) -> str:
    """The global name of parameter `local` of layer `unit`; a tied parameter has the name of the one it is tied to."""
    name = f"{unit}.{local}"
    tied: dict[str, str] = getattr(KINDS[model.kind], "TIED", {}) if model.tied else {}
    return tied.get(name, name)


def buffer_shapes(model: ModelSpec, units: list[str] | None = None) -> dict[str, tuple[int, ...]]:
    """Returns global name -> shape of the state of `units` (default: all) other than parameters: running statistics."""
    return {
        f"{unit}.{local}": tuple(buffer.shape)
        for unit in (model.units() if units is None else units)
        for local, buffer in build_unit(model, unit, torch.float32).named_buffers()
    }


def parameter_shapes(model: ModelSpec, units: list[str] | None = None) -> dict[str, tuple[int, ...]]:
    """Returns global name -> full shape of the parameters of `units` (default: all), in layer order; tied ones once."""
    shapes: dict[str, tuple[int, ...]] = {}
    for unit in model.units() if units is None else units:
        for local, parameter in build_unit(model, unit, torch.float32).named_parameters():
            shapes.setdefault(parameter_name(model, unit, local), tuple(parameter.shape))
    return shapes
