"""Dropout whose masks depend on the position of an element in the model and the batch, not on the rank that draws them.

Bits are from a counter-based generator, "squares" (Widynski 2020, arXiv:2004.06278, the five-round version with 64
bits), keyed by (seed, step, layer, sample) with the position within the sample's tensor as counter. So data, tensor
and pipeline parallelism, micro-batches and recomputation all use the same masks. Nothing is saved for the backward
pass, which draws the mask again.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from parallel_core.limits import DROPOUT_STEPS
from parallel_core.models.microbatch_context import Follower
from parallel_core.outline.temporaries import at_once

_LANES = 4
"""Elements that share one 64-bit number, 16 bits each."""


def uniform(keys: Tensor, stop: int, start: int = 0) -> Tensor:
    """Returns uniform integers 0 .. 65535, numbers `start` to `stop` of each key: [len(keys), stop - start], int32.

    `keys` are int64 and odd.
    """
    first = start // _LANES
    counters = torch.arange(first, -(-stop // _LANES), device=keys.device)
    bits = _squares(counters, keys[:, None])
    numbers = bits.view(torch.int16).to(torch.int32).bitwise_and_(DROPOUT_STEPS - 1)
    return numbers[:, start - first * _LANES : stop - first * _LANES]


def _squares(counter: Tensor, key: Tensor) -> Tensor:
    """Returns 64 random bits for each pair; relies on the wrap-around of int64 arithmetic.

    Works in place where possible: four temporary 64-bit numbers are live for each one drawn.
    """
    y = counter * key
    z = y + key
    x = _swap((y * y).add_(y))
    x = _swap(x.mul_(x).add_(z))
    x = _swap(x.mul_(x).add_(y))
    t = x.mul_(x).add_(z)
    del z
    x = _swap(t.clone())
    return t.bitwise_xor_(_upper(x.mul_(x).add_(y)))


def _swap(x: Tensor) -> Tensor:
    """Exchanges the upper and the lower 32 bits, in place."""
    upper = _upper(x.clone())
    return x.bitwise_left_shift_(32).bitwise_or_(upper)


def _upper(x: Tensor) -> Tensor:
    """Returns the upper 32 bits, in place; masked, since the shift alone is arithmetic and would extend the sign."""
    return x.bitwise_right_shift_(32).bitwise_and_(0xFFFFFFFF)


@lru_cache(maxsize=4096)
def _key(seed: int, step: int, layer: str, sample: int) -> int:
    digest = hashlib.blake2b(f"{seed}:{step}:{layer}:{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) | 1


class Run(NamedTuple):
    """Elements `start` to `stop` of each of the samples with these keys."""

    keys: list[int]
    start: int
    stop: int


class Held(NamedTuple):
    """The rows that a rank holds under sequence parallelism: part number `part` of `parts` equal ones; a sample has
    `seq` rows.

    Rows are the positions of all samples of a micro-batch, in order.
    """

    part: int
    parts: int
    seq: int

    def runs(self, rows: int) -> list[tuple[int, int, int]]:
        """Returns (sample, first row, last row + 1) for the `rows` rows that the rank holds."""
        out, at, end = [], self.part * rows, (self.part + 1) * rows
        while at < end:
            sample, row = divmod(at, self.seq)
            stop = min(self.seq, row + end - at)
            out.append((sample, row, stop))
            at += stop - row
        return out


class _Mask(torch.autograd.Function):
    """Computes x * mask / keep; the mask is drawn again for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, runs: list[Run], dropped: int) -> Tensor:
        ctx.runs, ctx.dropped = runs, dropped
        return _apply(x, runs, dropped)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _apply(grad, ctx.runs, ctx.dropped), None, None


def _apply(x: Tensor, runs: list[Run], dropped: int) -> Tensor:
    kept, done = torch.empty(x.numel(), dtype=torch.bool, device=x.device), 0
    for run in runs:
        size = len(run.keys) * (run.stop - run.start)
        _draw(run, dropped, kept[done : done + size].view(len(run.keys), -1))
        done += size
    return (x * kept.view(x.shape)).mul_(DROPOUT_STEPS / (DROPOUT_STEPS - dropped))


def _draw(run: Run, dropped: int, kept: Tensor) -> None:
    """Writes to `kept` [samples, elements] which elements of a run are kept; in blocks, to keep temporaries small."""
    keys = _keys_on(run.keys, kept.device)
    width = max(_LANES, at_once(kept.device.type) * _LANES // len(run.keys))
    for first in range(run.start, run.stop, width):
        last = min(run.stop, first + width)
        torch.ge(uniform(keys, last, first), dropped, out=kept[:, first - run.start : last - run.start])


def _keys_on(keys: list[int], device: torch.device) -> Tensor:
    """Returns the keys on the device, without waiting for the work queued there."""
    return torch.tensor(keys).to(device, non_blocking=True)


class Dropout(Follower):
    """Zeroes elements of [samples, ...] with probability `p`, rounded to a multiple of 2^-16, and scales up the others.

    `layer` is the global name of the dropout's position in the model. `held` is set under sequence parallelism, where
    a rank holds only some rows.
    """

    held: Held | None = None

    def __init__(self, p: float, layer: str) -> None:
        super().__init__()
        self.dropped, self.layer = round(p * DROPOUT_STEPS), layer

    def forward(self, x: Tensor) -> Tensor:
        if not self.dropped or self.passing.held_out:
            return x
        out: Tensor = _Mask.apply(x, self._runs(x), self.dropped)
        return out

    def _runs(self, x: Tensor) -> list[Run]:
        if self.held is None:
            return [Run([self._key(sample) for sample in range(len(x))], 0, x[0].numel())]
        width = x.shape[-1]
        held = self.held.runs(x.shape[1])
        return [Run([self._key(sample)], start * width, stop * width) for sample, start, stop in held]

    def _key(self, sample: int) -> int:
        passing = self.passing
        return _key(passing.seed, passing.step, self.layer, passing.first + sample)
