"""Dropout whose masks depend on what they mask, not on who draws them.

Bits come from a counter-based generator, "squares" (Widynski 2020, arXiv:2004.06278, the five-round version with 64
bits), keyed by (seed, step, layer, sample) and counted by the position within the sample's tensor. Data, tensor and
pipeline parallelism, micro-batches and recomputation therefore all see the same masks. Nothing is kept for the
backward pass: it draws the mask again.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from parallel_core.models.passing import Follower

_LANES = 4
"""Elements that share one 64-bit number, 16 bits each."""
_STEPS = 2**16


def uniform(keys: Tensor, count: int) -> Tensor:
    """Whole numbers 0 .. 65535, evenly distributed: (len(keys), count), int32. `keys` are int64 and odd."""
    counters = torch.arange(-(-count // _LANES), device=keys.device)
    bits = _squares(counters, keys[:, None])
    return bits.view(torch.int16).to(torch.int32).bitwise_and_(_STEPS - 1)[:, :count]


def _squares(counter: Tensor, key: Tensor) -> Tensor:
    """64 random bits for each pair; int64 arithmetic wraps around, as the generator wants it to."""
    y = counter * key
    z = y + key
    x = _swap(y * y + y)
    x = _swap(x * x + z)
    x = _swap(x * x + y)
    t = x * x + z
    x = _swap(t)
    return t ^ ((x * x + y) >> 32 & 0xFFFFFFFF)


def _swap(x: Tensor) -> Tensor:
    """Exchange the upper and the lower 32 bits."""
    return (x << 32) | (x >> 32 & 0xFFFFFFFF)


@lru_cache(maxsize=4096)
def _key(seed: int, step: int, layer: str, sample: int) -> int:
    digest = hashlib.blake2b(f"{seed}:{step}:{layer}:{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) | 1


class _Mask(torch.autograd.Function):
    """x * mask / keep; the mask is drawn again for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, dropped: int) -> Tensor:
        ctx.keys, ctx.dropped = keys, dropped
        return _apply(x, keys, dropped)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _apply(grad, ctx.keys, ctx.dropped), None, None


def _apply(x: Tensor, keys: Tensor, dropped: int) -> Tensor:
    keep = uniform(keys, x[0].numel()).view(x.shape) >= dropped
    return x * keep * (_STEPS / (_STEPS - dropped))


class Dropout(Follower):
    """Zeroes elements of (samples, ...) with probability `p` (a multiple of 2^-16) and scales up the others.

    `layer` is the global name of the place in the model.
    """

    def __init__(self, p: float, layer: str) -> None:
        super().__init__()
        self.dropped, self.layer = round(p * _STEPS), layer

    def forward(self, x: Tensor) -> Tensor:
        if not self.dropped:
            return x
        passing = self.passing
        samples = range(passing.first, passing.first + len(x))
        keys = [_key(passing.seed, passing.step, self.layer, sample) for sample in samples]
        out: Tensor = _Mask.apply(x, torch.tensor(keys, device=x.device), self.dropped)
        return out
