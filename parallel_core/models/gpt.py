"""GPT as a list of layers, with no parallelism inside: `embed, block.0.attn, block.0.mlp, ..., head`.

A pre-norm decoder (Radford et al. 2019) with learned positions and a GELU MLP of width 4 x hidden. Nothing here knows
the number of heads or columns it really holds: the modules take them from their weights, so `parallel_core.tensor` can
swap a linear layer for its share of it. The query, key and value rows of `qkv` are stored head by head, which makes the
share of a tensor rank one contiguous slice.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parallel_core.spec import ModelSpec


class Linear(nn.Linear):
    """Without torch's own first values: they come from `models.initial`."""

    def reset_parameters(self) -> None:
        return


class Embedding(nn.Embedding):
    """Without torch's own first values, which on the meta device would load its compiler (a second a process)."""

    def reset_parameters(self) -> None:
        return


class Embed(nn.Module):
    """Token ids (batch, seq), int64 -> activations (batch, seq, hidden)."""

    def __init__(self, model: ModelSpec, **like: Any) -> None:
        super().__init__()
        self.token = Embedding(model.vocab, model.hidden, **like)
        self.position = Embedding(model.seq, model.hidden, **like)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return out


class Attention(nn.Module):
    """Causal self-attention with its norm and residual; (batch, seq, hidden) in and out."""

    def __init__(self, model: ModelSpec, **like: Any) -> None:
        super().__init__()
        self.head_dim = model.hidden // model.heads
        self.norm = nn.LayerNorm(model.hidden, **like)
        self.qkv = Linear(model.hidden, 3 * model.hidden, **like)
        self.proj = Linear(model.hidden, model.hidden, **like)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        heads = self.qkv(self.norm(x)).view(batch, seq, -1, 3, self.head_dim)
        q, k, v = (part.transpose(1, 2) for part in heads.unbind(3))  # backward stacks them in place: no copy
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = x + self.proj(mixed.transpose(1, 2).reshape(batch, seq, -1))
        return out


class Mlp(nn.Module):
    """Two linear layers with GELU between, norm and residual; (batch, seq, hidden) in and out."""

    def __init__(self, model: ModelSpec, **like: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(model.hidden, **like)
        self.fc1 = Linear(model.hidden, 4 * model.hidden, **like)
        self.fc2 = Linear(4 * model.hidden, model.hidden, **like)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.fc2(F.gelu(self.fc1(self.norm(x)), approximate="tanh"))
        return out


class CrossEntropySum(nn.Module):
    """Sum of the negative log likelihoods: logits (n, vocab), targets (n,) -> scalar."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits, targets, reduction="sum")


class Head(nn.Module):
    """Final norm, projection to the vocabulary and loss: (batch, seq, hidden), targets (batch, seq) -> summed loss."""

    def __init__(self, model: ModelSpec, **like: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(model.hidden, **like)
        self.output = Linear(model.hidden, model.vocab, bias=False, **like)
        self.criterion = CrossEntropySum()

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.output(self.norm(x))
        loss: Tensor = self.criterion(logits.flatten(0, 1), targets.flatten())
        return loss


TIED = {"head.output.weight": "embed.token.weight"}
"""With `ModelSpec.tied`, parameters (left) that are another one (right)."""


def build_unit(model: ModelSpec, name: str, dtype: torch.dtype, device: str = "meta") -> nn.Module:
    """The layer called `name` (of `ModelSpec.units`) at its full size; on 'meta' it holds no memory."""
    classes = {"embed": Embed, "attn": Attention, "mlp": Mlp, "head": Head}
    return classes[name.rsplit(".", 1)[-1]](model, dtype=dtype, device=device)


def parameter_name(model: ModelSpec, unit: str, local: str) -> str:
    """Global name of parameter `local` of layer `unit`; a tied parameter has the name of the one it is tied to."""
    name = f"{unit}.{local}"
    return TIED.get(name, name) if model.tied else name


def parameter_shapes(model: ModelSpec, units: list[str] | None = None) -> dict[str, tuple[int, ...]]:
    """Global name -> full shape of the parameters of `units` (default: all), in layer order; tied ones once."""
    shapes: dict[str, tuple[int, ...]] = {}
    for unit in model.units() if units is None else units:
        for local, parameter in build_unit(model, unit, torch.float32).named_parameters():
            shapes.setdefault(parameter_name(model, unit, local), tuple(parameter.shape))
    return shapes
