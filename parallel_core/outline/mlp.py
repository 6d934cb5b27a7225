"""Sizes of a multi-layer perceptron: `layers` linear layers with ReLU, then a classifier."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from parallel_core.outline.base import UnitCost, product
from parallel_core.outline.images import ImageOutline

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


class MlpOutline(ImageOutline):
    """`block.0.linear, ..., head`: layers + 1 layers."""

    name = "MLP"
    fields = ("layers", "hidden", "image", "channels", "classes", "dropout")
    side_by_default = 8
    whole = "the MLP's layers are not split over tensors"

    def units(self) -> list[str]:
        return [*(f"block.{i}.linear" for i in range(self.model.layers)), "head"]

    def boundaries(self) -> list[tuple[int, ...]]:
        return [(), *([(self.model.hidden,)] * self.model.layers)]

    def flops(self) -> tuple[int, ...]:
        widths = [self.pixels, *([self.model.hidden] * self.model.layers), self.model.classes]
        return tuple(2 * a * b for a, b in pairwise(widths))

    def rows(self) -> list[tuple[int, ...]]:
        return [*([(self.model.hidden,) * 2] * self.model.layers), (self.model.classes,) * 2]

    def costs(self, spec: RunSpec) -> list[UnitCost]:
        h, rows = self.model.hidden, spec.micro_batch_size
        kept = rows * h if self.model.dropout else 0  # ReLU's output, where the layer's output is dropout's

        def linear(i: int) -> UnitCost:
            columns = h if i else self.pixels
            # W needs the gradient of ReLU's input, in addition to what the forward saved.
            apart = product(spec, columns * h)
            left, gathered, sizes = 2 * rows * h, rows * h - kept, (columns * h, h)
            entering, passing = self.elements(spec, i), left + apart
            return UnitCost(sizes, entering, kept, passing, gathered=gathered, product=apart, sent=left)

        return [*(linear(i) for i in range(self.model.layers)), self.head(spec, h)]
