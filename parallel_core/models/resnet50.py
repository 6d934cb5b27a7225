"""ResNet-50 (He et al. 2016): a stem, 16 bottleneck blocks, a linear layer. A block with its shortcut is one layer."""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from parallel_core.models.batchnorm import BatchNorm
from parallel_core.models.layers import Classifier, Convolution
from parallel_core.outline.resnet50 import Bottleneck, ResNet50Outline
from parallel_core.spec import ModelSpec


class Stem(nn.Module):
    """7 x 7 convolution, then max-pooling: [batch, channels, side, side] -> [batch, width, side / 4, side / 4]."""

    def __init__(self, channels: int, width: int, **like: Any) -> None:
        super().__init__()
        self.conv, self.norm = Convolution(channels, width, 7, 2, **like), BatchNorm(width, **like)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(self.norm(self.conv(x))), 3, 2, 1)


class BottleneckBlock(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with norms, added to the input or its projection."""

    def __init__(self, block: Bottleneck, **like: Any) -> None:
        super().__init__()
        self.conv1, self.norm1 = Convolution(block.inputs, block.inner, 1, **like), BatchNorm(block.inner, **like)
        self.conv2 = Convolution(block.inner, block.inner, 3, block.stride, **like)
        self.norm2 = BatchNorm(block.inner, **like)
        self.conv3, self.norm3 = Convolution(block.inner, block.outputs, 1, **like), BatchNorm(block.outputs, **like)
        self.shortcut, self.norm4 = None, None
        if block.projected:
            self.shortcut = Convolution(block.inputs, block.outputs, 1, block.stride, **like)
            self.norm4 = BatchNorm(block.outputs, **like)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        out = F.relu(self.norm2(self.conv2(out)))
        out = self.norm3(self.conv3(out))
        if self.shortcut is not None and self.norm4 is not None:
            x = self.norm4(self.shortcut(x))
        return F.relu(out + x)


class Head(Classifier):
    """Average pooling, classifier and loss."""

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return super().forward(x.mean((2, 3)), targets)


def build(model: ModelSpec, name: str, **like: Any) -> nn.Module:
    """Returns the layer called `name` at its full size."""
    outline = ResNet50Outline(model)
    if name == "stem":
        return Stem(model.channels, model.width, **like)
    if name == "head":
        return Head(outline.features, model.classes, **like)
    return BottleneckBlock(next(block for block in outline.bottlenecks() if block.name == name), **like)


def spread(model: ModelSpec, name: str, shape: tuple[int, ...]) -> float:
    """sqrt(2 / (outputs x kernel)) for convolutions (He et al. 2015, over outputs), sqrt(1 / inputs) for the
    classifier."""
    if len(shape) == 2:
        return math.sqrt(1 / shape[1])
    return math.sqrt(2 / (shape[0] * math.prod(shape[2:])))
