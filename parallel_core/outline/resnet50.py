"""Sizes of ResNet-50 (He et al. 2016, table 1): a stem, 16 bottleneck blocks in four groups, one linear layer.

The stride of 2 is in the 3 x 3 convolution, as in PyTorch's model. `width` is the stem's number of channels, 64 in
the paper. Each residual connection is within one layer of the list, so a single tensor is passed between stages.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from parallel_core.outline.images import INDEX_BYTES, ConvolutionOutline
from parallel_core.outline.temporaries import made
from parallel_core.outline.unit_cost import UnitCost

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec

GROUPS = (3, 4, 6, 3)
EXPANSION = 4
STEM_KERNEL = 49


class Bottleneck(NamedTuple):
    """A bottleneck block of 1 x 1, 3 x 3 and 1 x 1 convolutions; `side` is that of its input in pixels."""

    name: str
    inputs: int
    inner: int
    side: int
    stride: int

    @property
    def outputs(self) -> int:
        return EXPANSION * self.inner

    @property
    def out_side(self) -> int:
        return self.side // self.stride

    @property
    def projected(self) -> bool:
        """Whether the shortcut has a convolution."""
        return self.inputs != self.outputs or self.stride > 1

    @property
    def weights(self) -> list[int]:
        """Sizes of the convolutions' weights."""
        shortcut = [self.inputs * self.outputs] if self.projected else []
        return [self.inputs * self.inner, 9 * self.inner**2, self.inner * self.outputs, *shortcut]

    @property
    def channels(self) -> list[int]:
        """Output channels of the convolutions; the norm after each has two parameters of this size."""
        return [self.inner, self.inner, self.outputs, *([self.outputs] if self.projected else [])]


class ResNet50Outline(ConvolutionOutline):
    """`stem, block.0.bottleneck, ..., block.15.bottleneck, head`: 18 layers."""

    name = "ResNet-50"
    fields = ("width", "image", "channels", "classes")
    batch_norm = True
    constant_ns = (25_000.0, 1.6), (27_000.0, 2.4)

    @property
    def features(self) -> int:
        """Inputs of the last layer."""
        return EXPANSION * 8 * self.model.width

    @property
    def _stem_weight(self) -> int:
        """Elements of the stem's convolution."""
        return STEM_KERNEL * self.model.channels * self.model.width

    def bottlenecks(self) -> list[Bottleneck]:
        """Returns the 16 bottleneck blocks in order."""
        found: list[Bottleneck] = []
        inputs, side = self.model.width, self.side // 4
        for group, count in enumerate(GROUPS):
            for i in range(count):
                stride = 2 if group and not i else 1
                block = Bottleneck(f"block.{len(found)}.bottleneck", inputs, self.model.width << group, side, stride)
                found.append(block)
                inputs, side = block.outputs, block.out_side
        return found

    def units(self) -> list[str]:
        return ["stem", *(block.name for block in self.bottlenecks()), "head"]

    def boundaries(self) -> list[tuple[int, ...]]:
        blocks = self.bottlenecks()
        last = (blocks[-1].outputs, blocks[-1].out_side, blocks[-1].out_side)
        return [(), *((block.inputs, block.side, block.side) for block in blocks), last]

    def flops(self) -> tuple[int, ...]:
        stem = 2 * self._stem_weight * (self.side // 2) ** 2
        return (stem, *(self._flops(block) for block in self.bottlenecks()), 2 * self.features * self.model.classes)

    def rows(self) -> list[tuple[int, ...]]:
        """A convolution's weight, and its norm's scale and shift, each have one row per output channel."""
        normed = (tuple(out for out in channels for _ in range(3)) for channels in self._channels())
        return [*normed, (self.model.classes,) * 2]

    def norm_channels(self) -> list[list[int]]:
        return [*self._channels(), []]

    def standing(self, units: Collection[str], real: int) -> int:
        """Bytes of running means and variances, which are at least fp32."""
        channels = dict(zip(self.units(), self._channels(), strict=False))
        return 2 * max(real, 4) * sum(sum(channels.get(unit, [])) for unit in units)

    def _channels(self) -> list[list[int]]:
        """Returns the channels of each norm, for each layer but the last."""
        return [[self.model.width], *(block.channels for block in self.bottlenecks())]

    def costs(self, spec: RunSpec) -> list[UnitCost]:
        costs = [self._stem(spec), *(self._cost(spec, i, b) for i, b in enumerate(self.bottlenecks(), 1))]
        rows, pooled = spec.micro_batch_size, self.elements(spec, len(costs))
        head = self.head(spec, self.features)
        return [*costs, UnitCost(head.parameters, pooled, rows * self.features + head.inner, pooled + head.passing)]

    def _flops(self, block: Bottleneck) -> int:
        """FLOPs of a block: the first 1 x 1 convolution works on the input's pixels, the others on the output's."""
        first, *others = block.weights
        return 2 * (first * block.side**2 + sum(others) * block.out_side**2)

    def _stem(self, spec: RunSpec) -> UnitCost:
        """Memory of the stem: convolution, norm and ReLU at half the side, then max-pooling, which saves the indices of
        the maxima."""
        w, index = self.model.width, INDEX_BYTES // spec.element_bytes
        out = spec.micro_batch_size * w * (self.side // 2) ** 2
        places = index * out // 4  # freed by the time ReLU's gradient is computed
        inner = 2 * out + places + _moments(spec, [w])
        weight = made(spec, self._stem_weight)
        passing = max(2 * out + weight, _across(spec, out)) - places  # in the norm's backward, ReLU's output is freed
        return UnitCost((self._stem_weight, w, w), 0, inner, passing, leaving=out // 4, aside=inner)

    def _cost(self, spec: RunSpec, unit: int, block: Bottleneck) -> UnitCost:
        """Memory of a block: norms save the outputs of all convolutions, and the next convolution the outputs of the
        first two ReLUs."""
        rows, before, after = spec.micro_batch_size, block.side**2, block.out_side**2
        out = rows * block.outputs * after
        inner = 2 * rows * block.inner * (before + after) + out * (2 if block.projected else 1)
        inner += _moments(spec, block.channels)
        sizes = [s for pair in zip(block.weights, block.channels, strict=True) for s in (pair[0], pair[1], pair[1])]
        entering, weight = self.elements(spec, unit), made(spec, max(block.weights))
        passing = 2 * out + max(out + weight, _across(spec, out))
        return UnitCost(tuple(sizes), entering, inner, passing, aside=entering + inner)


def _across(spec: RunSpec, out: int) -> int:
    """Temporaries in the backward of a norm over the samples of all replicas (`models.batchnorm`), at least in fp32: in
    16-bit runs the incoming gradient, the normalized input, and three parts of the outgoing gradient."""
    if spec.parallel.dp == 1:
        return 0
    return spec.fp32_elements * out * (5 if spec.fp32_elements > 1 else 4)


def _moments(spec: RunSpec, channels: Sequence[int]) -> int:
    """Means and inverse deviations that norms with so many `channels` save, at least in fp32."""
    return 2 * spec.fp32_elements * sum(channels)
