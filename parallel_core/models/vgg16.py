"""VGG-16 (Simonyan and Zisserman 2015, column D): a list of its 16 layers with weights.

ReLU follows each layer but the last, 2 x 2 max-pooling the last convolution of each group, dropout the two hidden
linear layers.
"""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from parallel_core.models.layers import Classifier, Convolution
from parallel_core.models.mlp import Dense
from parallel_core.outline.vgg16 import Vgg16Outline
from parallel_core.spec import ModelSpec


class Convolved(nn.Module):
    """3 x 3 convolution and ReLU: [batch, inputs, side, side] -> [batch, outputs, side, side]; max-pooled to half the
    side if `pooled`."""

    def __init__(self, inputs: int, outputs: int, pooled: bool, **like: Any) -> None:
        super().__init__()
        self.conv, self.pooled = Convolution(inputs, outputs, 3, bias=True, **like), pooled

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.conv(x))
        return F.max_pool2d(out, 2) if self.pooled else out


def build(model: ModelSpec, name: str, **like: Any) -> nn.Module:
    """Returns the layer called `name` at its full size."""
    outline = Vgg16Outline(model)
    if name == "head":
        return Classifier(outline.dense, model.classes, **like)
    if name.startswith("fc."):
        columns = outline.flat if name == "fc.0" else outline.dense
        return Dense(columns, outline.dense, model.dropout, name, **like)
    found = next(conv for conv in outline.convolutions() if conv.name == name)
    return Convolved(found.inputs, found.outputs, found.pooled, **like)


def spread(model: ModelSpec, name: str, shape: tuple[int, ...]) -> float:
    """sqrt(2 / inputs of one output) (He et al. 2015): 16 layers without norms need it."""
    return math.sqrt(2 / math.prod(shape[1:]))
