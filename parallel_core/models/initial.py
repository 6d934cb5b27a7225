"""First values of parameters: a function of (seed, name, shape) alone, so that every layout starts from the same ones.

Each *full* parameter is drawn from a generator of its own; a rank then keeps its slice. Values are drawn in fp32 on the
CPU and cast, so precision and device do not change them either.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from parallel_core.spec import ModelSpec

STD = 0.02


def initial(model: ModelSpec, seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """Full value of parameter `name`, fp32 on the CPU.

    Norm gains 1, biases 0, weights N(0, 0.02), those in front of a residual sum divided by sqrt(2 x layers)
    (Radford et al. 2019, section 2.3).
    """
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith("bias"):
        return torch.zeros(shape)
    std = STD / math.sqrt(2 * model.layers) if name.endswith(("proj.weight", "fc2.weight")) else STD
    key = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)
    return torch.empty(shape).normal_(0.0, std, generator=generator)
