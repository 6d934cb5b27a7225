"""A small, fixed piece of work whose time shows how fast a device currently is (the reference work).

Each core of a shared host becomes faster and slower within seconds, independently of the others: other virtual
machines use its other hardware thread, its caches and its share of the memory bus. One transformer block of 64 x 128,
forward and backward, is affected like a training step: it multiplies matrices, accesses memory, and calls the library
in a similar proportion.
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
    """The reference work of one rank, on its CPU; uses a random generator of its own and has no side effects."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(_SEED)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float32).mul_(0.1).requires_grad_()

        self._input = drawn(1, ROWS, HIDDEN)
        shapes = ((3 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (4 * HIDDEN, HIDDEN), (HIDDEN, 4 * HIDDEN))
        self._weights = [drawn(*shape) for shape in shapes]

    def timed_pass(self) -> float:
        """Does the work three times; returns the processor seconds of this thread for the third.

        The first pass warms the caches. The second still takes 3 to 7 % longer after large micro-batches. Only the
        third is timed. Processor time excludes waiting for a core, and what a hypervisor gave to others: `CpuOthers`
        measures those.
        """
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
