"""The core of causal self-attention: what is between the projections, without a parameter of its own.

Fused, the s x s matrix of probabilities is never whole (Dao et al. 2022 on CUDA; PyTorch's blocked kernel on a CPU);
plain, it is made and kept for the backward, as in the systems that Korthikanti et al. 2022 measured. Either can let go
of what it made and make it again for the backward: their selective recomputation (section 5).
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


class Core(nn.Module):
    """Queries, keys and values (batch, seq, rows of `qkv`) -> their mix (batch, seq, heads x dim)."""

    recomputing: Callable[[], AbstractContextManager[None]] | None = None
    """Set where the core is recomputed: what it is made again in (gradients on, time and memory followed)."""

    cache: KvCache | None = None
    """Set where text is generated: what came before, which the new places attend to as well."""

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
        """The same, always with autograd's graph."""
        batch, seq, _ = qkv.shape
        q, k, v = self._heads(qkv)
        if self.rope:  # before heads and places change places: a fused kernel's output lies as its queries do
            cos, sin = (turn[:, None] for turn in self._turns(seq, qkv))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        if self.cache is not None:
            k, v = self.cache.extend(k, v)
        if self.plain:
            mixed = self._plain(q, k, v)
        else:
            if self.group > 1 and shares_no_keys(q):
                k, v = self._repeated(k), self._repeated(v)
            first, shared = k.shape[2] == seq, k.shape[1] < q.shape[1]  # else one place that may look at all
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=first, enable_gqa=shared)
        return mixed.transpose(1, 2).reshape(batch, seq, -1)

    def _turns(self, seq: int, qkv: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the next `seq` places."""
        first, places = (0, seq) if self.cache is None else (self.cache.length, self.cache.capacity)
        cos, sin = rotary(places, self.head_dim, self.rope_base, qkv.dtype, qkv.device)
        return cos[first : first + seq], sin[first : first + seq]

    def _heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (batch, seq, heads, dim), keys and values (batch, seq, kv heads, dim)."""
        batch, seq, _ = qkv.shape
        groups = qkv.view(batch, seq, -1, self.group + 2, self.head_dim)
        if self.group == 1:
            q, k, v = groups.unbind(3)  # backward stacks them in place: no copy
            return q, k, v
        queries, k, v = groups.split([self.group, 1, 1], 3)
        return queries.flatten(2, 3), k.squeeze(3), v.squeeze(3)

    def _repeated(self, shared: Tensor) -> Tensor:
        """Keys or values (batch, kv heads, seq, dim) once for each head of queries."""
        return shared.repeat_interleave(self.group, 1)

    def _plain(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """softmax(q k^T / sqrt(dim) + causal mask) v (Vaswani et al. 2017, equation 1)."""
        if self.group > 1:
            k, v = self._repeated(k), self._repeated(v)
        scores = (q @ k.transpose(-2, -1)).mul_(self.head_dim**-0.5)
        scores = scores.masked_fill_(_future(k.shape[2], q.device)[-q.shape[2] :], -torch.inf)
        return torch.softmax(scores, -1) @ v


def shares_no_keys(queries: Tensor) -> bool:
    """Whether PyTorch has no fused kernel in which several of these queries' heads share keys and values. On CUDA those
    are Flash's and cuDNN's, of 16 bits, on GPUs of compute capability 8.0 or more; elsewhere shared ones would
    fall back to the kernel that keeps the s x s matrix."""
    return queries.is_cuda and (queries.dtype == torch.float32 or not has_flash(queries.device))


@lru_cache(maxsize=16)
def has_flash(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)


class _Again(torch.autograd.Function):
    """Keeps queries, keys and values alone, and mixes them once more for the backward."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, core: Core) -> Tensor:
        ctx.save_for_backward(qkv)
        ctx.core = core
        return core.mix(qkv)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (qkv,), core = ctx.saved_tensors, ctx.core
        start = qkv.detach().requires_grad_()
        with core.recomputing():
            mixed = core.mix(start)
        (out,) = torch.autograd.grad(mixed, start, grad)
        return out, None


@lru_cache(maxsize=16)
def _future(seq: int, device: torch.device) -> Tensor:
    """(seq, seq), True where the key comes after the query."""
    return torch.ones(seq, seq, dtype=torch.bool, device=device).triu_(1)


@lru_cache(maxsize=16)
def rotary(seq: int, dim: int, base: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles by which RoPE turns, (seq, dim / 2) each (Su et al. 2021, section 3.2)."""
    speeds = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(seq, dtype=torch.float64)[:, None] * speeds
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + dim / 2) of (..., dim): Llama's order of dimensions."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
