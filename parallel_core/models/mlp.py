"""A multi-layer perceptron: linear layers with ReLU and dropout, then a classifier."""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from parallel_core.models.dropout import Dropout
from parallel_core.models.layers import Classifier, Linear
from parallel_core.outline.mlp import MlpOutline
from parallel_core.spec import ModelSpec


class Dense(nn.Module):
    """Linear layer, ReLU and dropout: [batch, ...] -> [batch, hidden]."""

    def __init__(self, columns: int, rows: int, dropout: float, name: str, **like: Any) -> None:
        super().__init__()
        self.linear = Linear(columns, rows, **like)
        self.dropout = Dropout(dropout, name)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(F.relu(self.linear(x.flatten(1))))
        return out


def build(model: ModelSpec, name: str, **like: Any) -> nn.Module:
    """Returns the layer called `name` at its full size."""
    if name == "head":
        return Classifier(model.hidden, model.classes, **like)
    columns = MlpOutline(model).pixels if name == "block.0.linear" else model.hidden
    return Dense(columns, model.hidden, model.dropout, name, **like)


def spread(model: ModelSpec, name: str, shape: tuple[int, ...]) -> float:
    """sqrt(2 / inputs), so that ReLU preserves the scale of activations (He et al. 2015)."""
    return math.sqrt(2 / shape[1])
