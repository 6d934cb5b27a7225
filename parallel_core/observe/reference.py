"""A small work that never changes: what it takes says how fast a device is just now.

A core of a shared host runs faster and slower by the second, each core on its own: other guests use its other half, its
caches and its share of the memory bus. One transformer block of 64 x 128, forward and backward, feels that as a
training step does: it multiplies matrices, goes through memory, and calls the library as often for its size.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch.nn import functional as F

from parallel_core.observe.records import REFERENCE_UNCOUNTED

ROWS, HIDDEN, HEADS = 64, 128, 4
_SEED = 1


class Reference:
    """The block of one rank, on its CPU; it draws from a generator of its own and leaves nothing behind."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(_SEED)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float32).mul_(0.1).requires_grad_()

        self._input = drawn(1, ROWS, HIDDEN)
        shapes = ((3 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (4 * HIDDEN, HIDDEN), (HIDDEN, 4 * HIDDEN))
        self._weights = [drawn(*shape) for shape in shapes]

    def once(self) -> float:
        """Does it three times; the processor seconds of this thread for the third. The first brings its tensors back
        into the caches: how far they were out of them says what ran before, not how fast the device is, and the second
        takes 3 to 7 % longer still, the more, the larger that was. Waiting for a turn, or time that a hypervisor gave
        to others, is no part of the seconds: `CpuOthers` counts those."""
        for _ in range(REFERENCE_UNCOUNTED):
            self._do()
        began = time.thread_time()
        self._do()
        return time.thread_time() - began

    def _do(self) -> None:
        with torch.enable_grad():
            torch.autograd.grad(self._forward().square().mean(), [self._input, *self._weights])

    def _forward(self) -> Tensor:
        qkv, out, up, down = self._weights
        split = F.linear(F.layer_norm(self._input, (HIDDEN,)), qkv).view(1, ROWS, 3, HEADS, HIDDEN // HEADS)
        queries, keys, values = split.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = self._input + F.linear(attended.transpose(1, 2).reshape(1, ROWS, HIDDEN), out)
        return x + F.linear(F.gelu(F.linear(F.layer_norm(x, (HIDDEN,)), up)), down)
