"""Sizes of a multi-layer perceptron: `layers` linear layers with ReLU, then a classifier."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from parallel_core.outline.images import ImageOutline
from parallel_core.outline.temporaries import drawn, product
from parallel_core.outline.unit_cost import UnitCost

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
        from parallel_core.layout import Layout  # `layout` imports this package

        h, rows, again = self.model.hidden, spec.micro_batch_size, spec.parallel.recompute == "full"
        kept = rows * h if self.model.dropout else 0  # ReLU's output, where the layer's output is dropout's
        last = {units[-1] for units in Layout.of(spec).stage_units}

        def linear(i: int) -> UnitCost:
            columns = h if i else self.pixels
            # W needs the gradient of ReLU's input, in addition to what the forward saved.
            apart = product(spec, columns * h)
            # In place of the gradient of its output that of ReLU's input, and that of its own, if it has any.
            left = rows * h if i or again else 0
            # ReLU's output, kept as the next layer's input, is still needed when that layer is done with it.
            relu = 0 if kept or again or i in last else 2 * rows * h
            return UnitCost(
                (columns * h, h),
                self.elements(spec, i),
                kept,
                max(left + apart, relu * (spec.parallel.zero == 2)),  # then beside the bucket that is being filled
                gathered=rows * h - kept,
                leaving=rows * h,
                product=apart,
                sent=left,
                drawn=max(relu, drawn(spec, rows * h)),
            )

        return [*(linear(i) for i in range(self.model.layers)), self.head(spec, h)]
