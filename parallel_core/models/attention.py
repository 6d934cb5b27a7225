"""The core of causal self-attention: everything between the projections, without parameters of its own.

The fused kernel never materializes the s x s matrix of probabilities (Dao et al. 2022 on CUDA; PyTorch's blocked kernel
on a CPU). "plain" attention materializes it and keeps it for the backward, as in the systems that Korthikanti et al.
2022 measured. With either, the core can be recomputed in the backward: their selective recomputation (section 5).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from parallel_core.models.cache import KvCache
from parallel_core.outline.gpt import GptOutline
from parallel_core.spec import ModelSpec

Tables = Callable[..., tuple[Tensor, Tensor]]
"""Computes cosines and sines of RoPE angles: `rotary`, `rotary_whole`."""


class Core(nn.Module):
    """Queries, keys and values [batch, seq, rows of `qkv`] -> attention output [batch, seq, heads x dim]."""

    recomputing: Callable[[], AbstractContextManager[None]] | None = None
    """Set where the core is recomputed: the context of the recomputation, which records its time and memory."""

    cache: KvCache | None = None
    """Set where text is generated: keys and values of earlier positions, which the new ones attend to as well."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        outline = GptOutline(model)
        self.head_dim, self.rope = outline.head_dim, model.positions == "rope"
        self.rope_base = model.rope_base
        self.group = model.heads // outline.kv_heads
        self.plain = model.attention == "plain"

    def forward(self, qkv: Tensor) -> Tensor:
        out: Tensor = self.mix(qkv) if self.recomputing is None else _Again.apply(qkv, self)
        return out

    def mix(self, qkv: Tensor) -> Tensor:
        """Computes the output, with the autograd graph where gradients are enabled."""
        batch, seq, _ = qkv.shape
        q, k, v = self._heads(qkv)
        if self.rope:  # before the transpose: a fused kernel's output has the memory layout of its queries
            turn, tables = (rotate_whole, rotary_whole) if qkv.is_cuda else (rotate, rotary)
            cos, sin = (table[:, None] for table in self._rope_tables(tables, seq, qkv))
            q, k = turn(q, cos, sin), turn(k, cos, sin)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        if self.cache is not None:
            k, v = self.cache.extend(k, v)
        if self.plain:
            mixed = self._plain(q, k, v)
        else:
            if self.group > 1 and shares_no_keys(q):
                k, v = self._repeat_heads(k), self._repeat_heads(v)
            first, shared = k.shape[2] == seq, k.shape[1] < q.shape[1]  # not first: one query that attends to all keys
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=first, enable_gqa=shared)
        return mixed.transpose(1, 2).reshape(batch, seq, -1)

    def _rope_tables(self, tables: Tables, seq: int, qkv: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the next `seq` rows of the cosines and sines that `tables` computes."""
        first, places = (0, seq) if self.cache is None else (self.cache.length, self.cache.capacity)
        cos, sin = tables(places, self.head_dim, self.rope_base, qkv.dtype, qkv.device)
        return cos[first : first + seq], sin[first : first + seq]

    def _heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Splits `qkv` into queries [batch, seq, heads, dim] and keys and values [batch, seq, kv heads, dim]."""
        batch, seq, _ = qkv.shape
        groups = qkv.view(batch, seq, -1, self.group + 2, self.head_dim)
        if self.group == 1:
            q, k, v = groups.unbind(3)  # its backward is one stack, without further copies
            return q, k, v
        queries, k, v = groups.split([self.group, 1, 1], 3)
        return queries.flatten(2, 3), k.squeeze(3), v.squeeze(3)

    def _repeat_heads(self, shared: Tensor) -> Tensor:
        """Repeats keys or values [batch, kv heads, seq, dim] for each query head."""
        return shared.repeat_interleave(self.group, 1)

    def _plain(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """softmax(q k^T / sqrt(dim) + causal mask) v (Vaswani et al. 2017, equation 1)."""
        if self.group > 1:
            k, v = self._repeat_heads(k), self._repeat_heads(v)
        scores = (q @ k.transpose(-2, -1)).mul_(self.head_dim**-0.5)
        scores = scores.masked_fill_(_causal_mask(k.shape[2], q.device)[-q.shape[2] :], -torch.inf)
        return torch.softmax(scores, -1) @ v


def shares_no_keys(queries: Tensor) -> bool:
    """Whether PyTorch has no fused kernel in which several heads of these queries share keys and values.

    On CUDA those are Flash's and cuDNN's, for 16-bit types, on GPUs of compute capability 8.0 or more; otherwise
    shared keys would fall back to the kernel that materializes the s x s matrix.
    """
    return queries.is_cuda and (queries.dtype == torch.float32 or not has_flash(queries.device))


@lru_cache(maxsize=16)
def has_flash(device: torch.device) -> bool:
    """Whether the GPU can run Flash attention: compute capability 8.0 or more."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


class _Again(torch.autograd.Function):
    """Selective recomputation: saves only queries, keys and values, and computes the core again in the backward."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, core: Core) -> Tensor:
        ctx.save_for_backward(qkv)
        ctx.core = core
        return core.mix(qkv)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (qkv,), core = ctx.saved_tensors, ctx.core
        start = qkv.detach().requires_grad_()
        with core.recomputing():
            mixed = core.mix(start)
        (out,) = torch.autograd.grad(mixed, start, grad)
        return out, None


@lru_cache(maxsize=16)
def _causal_mask(seq: int, device: torch.device) -> Tensor:
    """Returns the causal mask [seq, seq]: True where the key is after the query."""
    return torch.ones(seq, seq, dtype=torch.bool, device=device).triu_(1)


@lru_cache(maxsize=16)
def rotary(seq: int, dim: int, base: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns cosines and sines of the RoPE angles, [seq, dim / 2] each (Su et al. 2021, section 3.2)."""
    speeds = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(seq, dtype=torch.float64)[:, None] * speeds
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the pairs (i, i + dim / 2) of the last dimension: Llama's order of dimensions."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@lru_cache(maxsize=16)
def rotary_whole(seq: int, dim: int, base: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns `rotary` for `rotate_whole`: (cos, cos) and (-sin, sin), [seq, dim] each."""
    cos, sin = rotary.__wrapped__(seq, dim, base, dtype, device)  # uncached: a device needs only one kind of table
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)


class _Rotation(torch.autograd.Function):
    """Rotates by three kernels in each direction. Of single operations (`rotate`) the forward needs seven, and the
    backward more: on CUDA each is a launch, and a pass over half of the queries or keys."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotation(x, cos, sin, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotation(grad, cos, sin, -1), None, None


def _rotation(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    swapped = torch.cat(x.chunk(2, -1)[::-1], -1)
    return (x * cos).addcmul_(swapped, sin, value=sign)


def rotate_whole(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns what `rotate` does, from the tables of `rotary_whole`; in 16 bits it rounds less often."""
    out: Tensor = _Rotation.apply(x, cos, sin)
    return out
