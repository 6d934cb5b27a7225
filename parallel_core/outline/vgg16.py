"""Sizes of VGG-16 (Simonyan and Zisserman 2015, table 1, column D): 13 convolutions in five groups, three linear
layers.

`width` is the first group's number of channels, 64 in the paper; the linear layers are 64 x width = 4096 wide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from parallel_core.outline.images import INDEX_BYTES, ConvolutionOutline
from parallel_core.outline.temporaries import made, product
from parallel_core.outline.unit_cost import UnitCost

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec

GROUPS = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))
"""(channels / width, convolutions) of each group; 2 x 2 max-pooling ends it."""
KERNEL = 9


class Convolution(NamedTuple):
    """One 3 x 3 convolution on images of `side` x `side` pixels; `pooled`: followed by max-pooling."""

    name: str
    inputs: int
    outputs: int
    side: int
    pooled: bool


class Vgg16Outline(ConvolutionOutline):
    """`block.0.conv0, block.0.conv1, block.1.conv0, ..., fc.0, fc.1, head`: the 16 layers with weights."""

    name = "VGG-16"
    fields = ("width", "image", "channels", "classes", "dropout")
    constant_ns = (60_000.0, 0.4), (90_000.0, 1.1)

    @property
    def dense(self) -> int:
        """Width of the linear layers."""
        return 64 * self.model.width

    @property
    def flat(self) -> int:
        """Inputs of the first linear layer."""
        return GROUPS[-1][0] * self.model.width * (self.side // 32) ** 2

    def convolutions(self) -> list[Convolution]:
        """Returns the 13 convolutions in order."""
        found: list[Convolution] = []
        inputs = self.model.channels
        for group, (factor, count) in enumerate(GROUPS):
            for i in range(count):
                outputs, side = factor * self.model.width, self.side >> group
                found.append(Convolution(f"block.{group}.conv{i}", inputs, outputs, side, i == count - 1))
                inputs = outputs
        return found

    def units(self) -> list[str]:
        return [*(conv.name for conv in self.convolutions()), "fc.0", "fc.1", "head"]

    def boundaries(self) -> list[tuple[int, ...]]:
        inner = [(conv.inputs, conv.side, conv.side) for conv in self.convolutions()[1:]]
        last = (GROUPS[-1][0] * self.model.width, self.side // 32, self.side // 32)
        return [(), *inner, last, (self.dense,), (self.dense,)]

    def flops(self) -> tuple[int, ...]:
        convolutions = [2 * KERNEL * c.inputs * c.outputs * c.side**2 for c in self.convolutions()]
        return (*convolutions, 2 * self.flat * self.dense, 2 * self.dense**2, 2 * self.dense * self.model.classes)

    def rows(self) -> list[tuple[int, ...]]:
        linear = (self.dense, self.dense, self.model.classes)
        return [(out, out) for out in (*(c.outputs for c in self.convolutions()), *linear)]

    def costs(self, spec: RunSpec) -> list[UnitCost]:
        """A convolution saves its input, ReLU its output, which is the next convolution's input unless it is pooled."""
        rows = spec.micro_batch_size
        index = INDEX_BYTES // spec.element_bytes
        costs = []
        for i, conv in enumerate(self.convolutions()):
            out, weight = rows * conv.outputs * conv.side**2, KERNEL * conv.inputs * conv.outputs
            entering = self.elements(spec, i)
            inner, passing, leaving = 0, out + entering + made(spec, weight + conv.outputs), out
            if conv.pooled:  # the indices of the maxima are freed by the time ReLU's gradient is computed
                places = index * out // 4
                inner, passing, leaving = out + places, max(2 * out, entering + made(spec, weight)) - places, out // 4
            sizes, aside = (weight, conv.outputs), entering + inner
            costs.append(UnitCost(sizes, entering, inner, passing, leaving=leaving, aside=aside))
        kept = rows * self.dense if self.model.dropout else 0
        for columns in (self.flat, self.dense):
            weight = columns * self.dense
            entering, apart = self.elements(spec, len(costs)), product(spec, weight)
            left = rows * (columns + self.dense)
            costs.append(UnitCost((weight, self.dense), entering, kept, left + apart, product=apart, sent=left))
        return [*costs, self.head(spec, self.dense)]
