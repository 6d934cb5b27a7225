"""A translation model in the manner of GNMT (Wu et al. 2016): a list of LSTM layers with attention between.

As in MLPerf's and PipeDream's GNMT the first encoder layer runs both ways, later ones add their input, the first
decoder layer attends to the encoder and the context it finds is an input of every later one. Simpler than theirs: each
direction of the first layer is half as wide, and attention is a scaled product instead of a small network.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parallel_core.models.dropout import Dropout
from parallel_core.models.layers import Embedding, Linear
from parallel_core.models.loss import CrossEntropySum
from parallel_core.models.microbatch_context import Follower
from parallel_core.outline.gnmt import GnmtOutline
from parallel_core.spec import ModelSpec

PADDING = 0


class Lstm(nn.LSTM):
    """(batch, seq, inputs) -> (batch, seq, width), without first values."""

    def reset_parameters(self) -> None:
        return


class Embed(nn.Module):
    """Source and shifted target (batch, 2, seq) -> embedded source (batch, seq, hidden)."""

    def __init__(self, model: ModelSpec, name: str, **like: Any) -> None:
        super().__init__()
        self.source = Embedding(model.vocab, model.hidden, **like)
        self.dropout = Dropout(model.dropout, name)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.source(ids[:, 0]))
        return out


class Encoder(nn.Module):
    """(batch, seq, hidden) in and out; `both` ways, or one way and added to its input."""

    def __init__(self, model: ModelSpec, name: str, both: bool, **like: Any) -> None:
        super().__init__()
        width, self.both = model.hidden // 2 if both else model.hidden, both
        self.lstm = Lstm(model.hidden, width, batch_first=True, bidirectional=both, **like)
        self.dropout = Dropout(model.dropout, name)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.lstm(x)[0])
        return out if self.both else x + out


class Attending(Follower):
    """The first decoder layer: encoder's states (batch, seq, hidden) -> own and context (batch, seq, 2 hidden)."""

    def __init__(self, model: ModelSpec, name: str, **like: Any) -> None:
        super().__init__()
        self.words = Embedding(model.vocab, model.hidden, **like)
        self.lstm = Lstm(model.hidden, model.hidden, batch_first=True, **like)
        self.query = Linear(model.hidden, model.hidden, **like)
        self.dropout = Dropout(model.dropout, name)

    def forward(self, encoded: Tensor) -> Tensor:
        source, target = self.passing.sample.inputs.unbind(1)
        states = self.dropout(self.lstm(self.words(target))[0])
        seen = (source != PADDING)[:, None]
        context = F.scaled_dot_product_attention(self.query(states), encoded, encoded, attn_mask=seen)
        return torch.cat([states, context], -1)


class Decoder(nn.Module):
    """States and context (batch, seq, 2 hidden) in and out; the states are added to what comes of both."""

    def __init__(self, model: ModelSpec, name: str, **like: Any) -> None:
        super().__init__()
        self.lstm = Lstm(2 * model.hidden, model.hidden, batch_first=True, **like)
        self.dropout = Dropout(model.dropout, name)

    def forward(self, x: Tensor) -> Tensor:
        states, context = x.chunk(2, -1)
        return torch.cat([states + self.dropout(self.lstm(x)[0]), context], -1)


class Head(nn.Module):
    """States and context (batch, seq, 2 hidden), targets (batch, seq) -> summed loss of the words that count."""

    def __init__(self, model: ModelSpec, **like: Any) -> None:
        super().__init__()
        self.output = Linear(model.hidden, model.vocab, **like)
        self.criterion = CrossEntropySum()

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        states = x.chunk(2, -1)[0].flatten(0, 1)  # as rows: else the bias is added apart, to a second tensor of logits
        loss: Tensor = self.criterion(self.output(states), targets.flatten())
        return loss


def build(model: ModelSpec, name: str, **like: Any) -> nn.Module:
    """The layer called `name` at its full size."""
    if name == "embed":
        return Embed(model, name, **like)
    if name == "head":
        return Head(model, **like)
    if name.endswith("encoder"):
        return Encoder(model, name, name == "block.0.encoder", **like)
    return (Attending if name == GnmtOutline(model).first_decoder else Decoder)(model, name, **like)


def spread(model: ModelSpec, name: str, shape: tuple[int, ...]) -> float:
    """1 / sqrt(3 x hidden): the deviation of PyTorch's uniform first values."""
    return 1 / math.sqrt(3 * model.hidden)
