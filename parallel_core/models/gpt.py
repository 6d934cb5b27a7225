"""GPT as a list of layers, with no parallelism inside: `embed, block.0.attn, block.0.mlp, ..., head`.

A pre-norm decoder (Radford et al. 2019). Options make it a Llama (Touvron et al. 2023): rotary positions, RMSNorm,
SwiGLU, grouped-query attention, no bias. Dropout is applied to embeddings and before each residual sum, not to
attention probabilities, which the fused kernel does not expose.

The modules take the number of heads and columns from their weights, so that `parallel_core.tensor` can replace a linear
layer by its shard. For that the rows of `qkv` are stored group by group (the queries that share a key, the key, the
value), and those of a SwiGLU's `fc1` pair by pair (gate, up): the shard of a tensor rank is one contiguous slice.
"""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from parallel_core.models.attention import Core
from parallel_core.models.dropout import Dropout
from parallel_core.models.layers import Embedding, Linear, Positions, norm_of
from parallel_core.models.loss import CrossEntropySum
from parallel_core.outline.gpt import GptOutline
from parallel_core.spec import ModelSpec

STD = 0.02


class Embed(nn.Module):
    """Token ids [batch, seq], int64 -> activations [batch, seq, hidden]."""

    def __init__(self, model: ModelSpec, name: str, **like: Any) -> None:
        super().__init__()
        self.token = Embedding(model.vocab, model.hidden, **like)
        self.position = Positions(model.seq, model.hidden, **like) if model.positions == "learned" else None
        self.dropout = Dropout(model.dropout, name)

    def forward(self, tokens: Tensor) -> Tensor:
        out = self.token(tokens)
        if self.position is not None:
            out = self.position(out)
        dropped: Tensor = self.dropout(out)
        return dropped


class Attention(nn.Module):
    """Causal self-attention with its norm and residual; [batch, seq, hidden] -> [batch, seq, hidden]."""

    def __init__(self, model: ModelSpec, name: str, **like: Any) -> None:
        super().__init__()
        outline = GptOutline(model)
        rows = (model.heads + 2 * outline.kv_heads) * outline.head_dim
        self.norm = norm_of(model, **like)
        self.qkv = Linear(model.hidden, rows, bias=model.bias, **like)
        self.core = Core(model)
        self.proj = Linear(model.hidden, model.hidden, bias=model.bias, **like)
        self.dropout = Dropout(model.dropout, name)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.dropout(self.proj(self.core(self.qkv(self.norm(x)))))
        return out


class Mlp(nn.Module):
    """Two linear layers with GELU or SwiGLU between, norm and residual; [batch, seq, hidden] -> [batch, seq, hidden].

    GELU is exact, x times the normal distribution function (Hendrycks and Gimpel 2016, section 2): with a vectorized
    erf it takes half of the processor time of its tanh approximation.
    """

    def __init__(self, model: ModelSpec, name: str, **like: Any) -> None:
        super().__init__()
        ffn, self.gated = GptOutline(model).ffn, model.activation == "swiglu"
        self.norm = norm_of(model, **like)
        self.fc1 = Linear(model.hidden, 2 * ffn if self.gated else ffn, bias=model.bias, **like)
        self.fc2 = Linear(ffn, model.hidden, bias=model.bias, **like)
        self.dropout = Dropout(model.dropout, name)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.dropout(self.fc2(self._activate(self.fc1(self.norm(x)))))
        return out

    def _activate(self, x: Tensor) -> Tensor:
        if not self.gated:
            return F.gelu(x)
        gate, up = x.unflatten(-1, (-1, 2)).unbind(-1)
        return F.silu(gate) * up


class Head(nn.Module):
    """Final norm, projection to the vocabulary and loss: [batch, seq, hidden], targets [batch, seq] -> summed loss."""

    def __init__(self, model: ModelSpec, name: str, **like: Any) -> None:
        super().__init__()
        self.norm = norm_of(model, **like)
        self.output = Linear(model.hidden, model.vocab, bias=False, **like)
        self.criterion = CrossEntropySum()

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.output(self.norm(x))
        loss: Tensor = self.criterion(logits.flatten(0, 1), targets.flatten())
        return loss


TIED = {"head.output.weight": "embed.token.weight"}
"""With `ModelSpec.tied`: parameter -> the parameter that it is the same as."""


def build(model: ModelSpec, name: str, **like: Any) -> nn.Module:
    """Returns the layer called `name` at its full size."""
    classes: dict[str, type[nn.Module]] = {"embed": Embed, "attn": Attention, "mlp": Mlp, "head": Head}
    return classes[name.rsplit(".", 1)[-1]](model, name, **like)


def spread(model: ModelSpec, name: str, shape: tuple[int, ...]) -> float:
    """Standard deviation of initial weights: 0.02, before a residual sum divided by sqrt(2 x layers) (Radford et al.
    2019, section 2.3)."""
    return STD / math.sqrt(2 * model.layers) if name.endswith(("proj.weight", "fc2.weight")) else STD
