"""First values of parameters: a function of (seed, name, shape) alone, so that every layout starts from the same ones.

Each *full* parameter is drawn from a generator of its own; a rank then keeps its slice. Values are drawn in fp32 on the
CPU and cast, so precision and device do not change them either.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from parallel_core.models.registry import KINDS
from parallel_core.spec import ModelSpec


def initial(model: ModelSpec, seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """Full value of parameter `name`, fp32 on the CPU: norm gains 1, biases 0, weights by the kind's spread."""
    layer, kind = name.rsplit(".", 2)[-2:]
    if kind == "weight" and layer.startswith("norm"):
        return torch.ones(shape)
    if kind.startswith("bias"):
        return torch.zeros(shape)
    key = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)
    std: float = KINDS[model.kind].spread(model, name, shape)
    return torch.empty(shape).normal_(0.0, std, generator=generator)
