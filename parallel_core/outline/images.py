"""Common part of image models: one target per sample, square images, no tensor parallelism."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, ClassVar

from parallel_core.outline.base import Outline
from parallel_core.outline.temporaries import product
from parallel_core.outline.unit_cost import UnitCost
from parallel_core.rules import rule_error

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec

DIGITS = 10
"""Classes of the digits."""
INDEX_BYTES = 8
FEWER = 32
"""Factor by which VGG-16 and ResNet-50 reduce the image's side: they halve it five times."""


class ImageOutline(Outline):
    """A model for images; `side` is the side of an image in pixels."""

    target = "images"
    corpora = ("digits", "images")
    side_by_default: ClassVar[int]

    @property
    def title(self) -> str:
        return f"{super().title}{self.beyond_digits}"

    @property
    def beyond_digits(self) -> str:
        """What of its data tells it from a model for the digits: `, 3 channels, 7 classes`; '' if nothing does."""
        told = [(self.model.channels, 1, "channels"), (self.model.classes, DIGITS, "classes")]
        return "".join(f", {count} {what}" for count, usual, what in told if count != usual)

    @property
    def side(self) -> int:
        return self.model.image or self.side_by_default

    @property
    def pixels(self) -> int:
        """Numbers of an image, over all channels."""
        return self.model.channels * self.side**2

    @property
    def takes_digits(self) -> bool:
        """Whether it can be trained on the digits: grey images of ten classes."""
        return self.model.channels == 1 and self.model.classes >= DIGITS

    @property
    def profiled(self) -> str:
        return self.corpora[0] if self.takes_digits else "images:profile"

    @property
    def targets(self) -> int:
        return 1

    def sample_bytes(self, real: int) -> int:
        return real * self.pixels + INDEX_BYTES

    def head(self, spec: RunSpec, width: int) -> UnitCost:
        """Returns the memory of a linear layer from `width` inputs to the classes, with the loss."""
        rows, classes = spec.micro_batch_size, self.model.classes
        logits, apart = rows * classes, product(spec, classes * width)
        sizes, left = (classes * width, classes), rows * width
        return UnitCost(sizes, rows * width, logits, left + apart, product=apart, sent=left)

    def elements(self, spec: RunSpec, unit: int) -> int:
        """Returns the elements of a layer's input, for one micro-batch; 0 for the first layer, whose input is the
        sample, which is not kept."""
        return spec.micro_batch_size * prod(self.boundaries()[unit]) if unit else 0


class ConvolutionOutline(ImageOutline):
    """A convolutional model whose first layers have `width` channels."""

    side_by_default = FEWER
    whole = "convolutions are not split over tensors, and data or pipeline parallelism costs them less"

    @property
    def title(self) -> str:
        return f"{self.name} width {self.model.width}, {self.side} px{self.beyond_digits}"

    def check(self) -> None:
        if self.side % FEWER:
            below = max(self.side // FEWER, 1) * FEWER
            raise rule_error(
                ("model.image",),
                f"image={self.side} cannot be halved five times; try {below} or {below + FEWER}.",
            )

    def by_autograd(self, unit: str) -> int | None:
        return 0 if unit == "head" or unit.startswith("fc.") else None
