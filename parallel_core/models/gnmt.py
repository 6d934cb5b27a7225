"""A translation model similar to GNMT (Wu et al. 2016): a list of LSTM layers with attention between encoder and
decoder.

As in MLPerf's and PipeDream's GNMT the first encoder layer is bidirectional, later ones have residual connections, the
first decoder layer attends to the encoder, and its context is an input of every later one. Simplifications: each
direction of the first layer has half the width, and attention is a scaled dot product in place of a small network.
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
    """[batch, seq, inputs] -> [batch, seq, width]; leaves parameters uninitialized."""

    def reset_parameters(self) -> None:
        return


class Embed(nn.Module):
    """Source and shifted target [batch, 2, seq] -> embedded source [batch, seq, hidden]."""

    def __init__(self, model: ModelSpec, name: str, **like: Any) -> None:
        super().__init__()
        self.source = Embedding(model.vocab, model.hidden, **like)
        self.dropout = Dropout(model.dropout, name)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.source(ids[:, 0]))
        return out


class Encoder(nn.Module):
    """[batch, seq, hidden] -> [batch, seq, hidden]: bidirectional (`both`), or one direction with a residual
    connection."""

    def __init__(self, model: ModelSpec, name: str, both: bool, **like: Any) -> None:
        super().__init__()
        width, self.both = model.hidden // 2 if both else model.hidden, both
        self.lstm = Lstm(model.hidden, width, batch_first=True, bidirectional=both, **like)
        self.dropout = Dropout(model.dropout, name)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.lstm(x)[0])
        return out if self.both else x + out


class Attending(Follower):
    """The first decoder layer: encoder states [batch, seq, hidden] -> own states and context [batch, seq, 2 hidden]."""

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
    """States and context [batch, seq, 2 hidden] -> the same; the LSTM has a residual connection for the states."""

    def __init__(self, model: ModelSpec, name: str, **like: Any) -> None:
        super().__init__()
        self.lstm = Lstm(2 * model.hidden, model.hidden, batch_first=True, **like)
        self.dropout = Dropout(model.dropout, name)

    def forward(self, x: Tensor) -> Tensor:
        states, context = x.chunk(2, -1)
        return torch.cat([states + self.dropout(self.lstm(x)[0]), context], -1)


class Head(nn.Module):
    """States and context [batch, seq, 2 hidden], targets [batch, seq] -> summed loss of the targets that are not
    masked."""

    def __init__(self, model: ModelSpec, **like: Any) -> None:
        super().__init__()
        self.output = Linear(model.hidden, model.vocab, **like)
        self.criterion = CrossEntropySum()

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        states = x.chunk(2, -1)[0].flatten(0, 1)  # 2-D, else the bias is added separately, into a second logits tensor
        loss: Tensor = self.criterion(self.output(states), targets.flatten())
        return loss


def build(model: ModelSpec, name: str, **like: Any) -> nn.Module:
    """Returns the layer called `name` at its full size."""
    if name == "embed":
        return Embed(model, name, **like)
    if name == "head":
        return Head(model, **like)
    if name.endswith("encoder"):
        return Encoder(model, name, name == "block.0.encoder", **like)
    return (Attending if name == GnmtOutline(model).first_decoder else Decoder)(model, name, **like)


def spread(model: ModelSpec, name: str, shape: tuple[int, ...]) -> float:
    """1 / sqrt(3 x hidden): the standard deviation of PyTorch's uniform initialization."""
    return 1 / math.sqrt(3 * model.hidden)
