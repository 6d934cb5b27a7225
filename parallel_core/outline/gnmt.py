"""Sizes of a translation model in the manner of GNMT (Wu et al. 2016): LSTM encoder, attention, LSTM decoder.

`layers` counts those of the encoder, and again those of the decoder. What passes between layers of the encoder is
(seq, hidden); the decoder's states travel beside the attention's context, packed into one tensor (seq, 2 x hidden).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from parallel_core.outline.base import Outline, UnitCost, apart
from parallel_core.rules import rule

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec

ID_BYTES = 8
GATES = 4


class GnmtOutline(Outline):
    """`embed, block.0.encoder, ..., block.L.decoder, ..., head`: 2 x layers + 2 layers."""

    fields = ("layers", "hidden", "seq", "vocab", "dropout")
    target = "tokens"
    corpora = ("django",)
    whole = "LSTM layers are not split over tensors: each position needs the one before"

    @property
    def title(self) -> str:
        return f"GNMT {self.model.layers} x {self.model.hidden}"

    @property
    def targets(self) -> int:
        return self.model.seq

    @property
    def sample_bytes(self) -> int:
        """Source, target shifted by one, and target."""
        return 3 * ID_BYTES * self.model.seq

    @property
    def first_decoder(self) -> str:
        """The layer that reads the target's words and looks at the encoder's states."""
        return f"block.{self.model.layers}.decoder"

    def check(self) -> None:
        hidden = self.model.hidden
        if hidden % 2:
            raise rule(
                ("model.hidden",),
                f"hidden={hidden} has no half for each direction of the first layer; try {hidden + 1}.",
            )

    def check_tensor(self, tp: int, field: str) -> None:
        raise rule((field, "model.kind"), f"tensor={tp} is not possible: {self.whole}; use tensor=1.")

    def units(self) -> list[str]:
        count = self.model.layers
        blocks = (f"block.{i}.{'encoder' if i < count else 'decoder'}" for i in range(2 * count))
        return ["embed", *blocks, "head"]

    def readers(self) -> set[str]:
        return {"embed", self.first_decoder, "head"}

    def boundaries(self) -> list[tuple[int, ...]]:
        s, h, count = self.model.seq, self.model.hidden, self.model.layers
        return [(), *([(s, h)] * (count + 1)), *([(s, 2 * h)] * count)]

    def flops(self) -> tuple[int, ...]:
        """An LSTM multiplies input and state by four gates' matrices; the first runs each way at half the width."""
        s, h, count = self.model.seq, self.model.hidden, self.model.layers
        layer = 2 * s * GATES * h
        both, one = layer * (h + h // 2), layer * 2 * h
        attending = one + 2 * s * h * h + 4 * s * s * h
        rest = [layer * 3 * h] * (count - 1)
        return (s * h, both, *([one] * (count - 1)), attending, *rest, 2 * s * h * self.model.vocab)

    def costs(self, spec: RunSpec) -> list[UnitCost]:
        h, vocab, rows = self.model.hidden, self.model.vocab, spec.micro_batch_size * self.model.seq
        logits, table = rows * vocab, vocab * h
        costs = [UnitCost((table,), 0, 0, rows * h + table)]
        for i in range(2 * self.model.layers):
            entering = spec.micro_batch_size * prod(self.boundaries()[i + 1])
            costs.append(self._layer(spec, i, entering))
        product, loss = apart(spec, vocab * h), apart(spec, logits)
        passing, kept = max(rows * h + product, 3 * rows * h - logits), spec.fp32_elements * logits
        head = UnitCost((vocab * h, vocab), 2 * rows * h, kept, passing, loss=loss, aside=loss, product=product)
        return [*costs, head]

    def _layer(self, spec: RunSpec, i: int, entering: int) -> UnitCost:
        """The layer with attention also keeps queries, keys, weights and context."""
        h, s, count = self.model.hidden, self.model.seq, self.model.layers
        rows = spec.micro_batch_size * s
        width, ways = (h // 2, 2) if i == 0 else (h, 1)
        inputs = 2 * h if i > count else h
        lstm = (GATES * width * inputs, GATES * width * width, GATES * width, GATES * width) * ways
        one = ways * _workspace(spec, inputs, width) if _fused(spec) else rows * ways * (inputs + (GATES + 3) * width)
        parameters, inner, linear = lstm, one, 0
        copied = entering if _fused(spec) and i > count else 0
        if _fused(spec):
            inner += rows * h + copied  # the first layer's input, or a later one's output
        if i == count:
            parameters = (self.model.vocab * h, *lstm, h * h, h)
            inner, linear = inner + rows * (3 * h + (s if _fused(spec) else 2 * s)), 2 * rows * h  # the queries' layer
        passing = self._passing(spec, i, sum(lstm) // ways)
        leaving = rows * h * (1 if i < count else 2) if _fused(spec) else 0
        aside = entering + inner - linear
        late = one if _fused(spec) and i not in (0, count) else 0  # those two add to other gradients before
        return UnitCost(parameters, entering, inner, passing, leaving=leaving, copied=copied, aside=aside, late=late)

    def _passing(self, spec: RunSpec, i: int, weights: int) -> int:
        """In its backward beside the gradient of its output; `weights` are those of one direction."""
        h, count = self.model.hidden, self.model.layers
        rows = spec.micro_batch_size * self.model.seq
        if not _fused(spec):
            return max(rows * h * GATES, weights)
        if i == count:
            return max(weights, 3 * rows * h)
        return weights + rows * h * (2 if i > count else i == 0)


def _fused(spec: RunSpec) -> bool:
    """Whether oneDNN's kernel for CPUs runs an LSTM as one operation: in bf16 on those with AVX-512 alone."""
    return spec.train.device == "cpu" and spec.train.precision in ("fp32", "bf16")


def _workspace(spec: RunSpec, inputs: int, width: int) -> int:
    """Elements that oneDNN keeps of an LSTM in one direction, and its first states: states and their gradients of every
    position and one more, gates of every position. Rows begin at multiples of 64 bytes, and not of 1 KiB.

    Found from its sizes for 12 shapes of inputs and widths from 32 to 1 024 in 4 batches, and within 2 % of them. In
    bf16 it keeps about two thirds of those bytes (three shapes: 65, 66 and 71 %): sums stay in fp32.
    """
    positions, widest = spec.model.seq, max(inputs, width)
    row = -(-widest // 16) * 16 + (0 if widest % 256 else 16)
    each = (positions + 1) * (6 * row + 5 * width) + (GATES * positions + 2) * width
    return (spec.micro_batch_size * each + 2560) * (4 if spec.fp32_elements > 1 else 3) // 3
