"""Sizes of a translation model in the manner of GNMT (Wu et al. 2016): LSTM encoder, attention, LSTM decoder.

`layers` counts those of the encoder, and again those of the decoder. What passes between layers of the encoder is
(seq, hidden); the decoder's states travel beside the attention's context, packed into one tensor (seq, 2 x hidden).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from parallel_core.outline.base import Outline, UnitCost
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
        head = UnitCost((vocab * h, vocab), 2 * rows * h, logits + rows * h, 3 * rows * h, aside=rows * h)
        return [*costs, head]

    def _layer(self, spec: RunSpec, i: int, entering: int) -> UnitCost:
        """The layer with attention also keeps queries, keys, weights and context."""
        h, s, count = self.model.hidden, self.model.seq, self.model.layers
        rows = spec.micro_batch_size * s
        width, ways = (h // 2, 2) if i == 0 else (h, 1)
        inputs = 2 * h if i > count else h
        lstm = (GATES * width * inputs, GATES * width * width, GATES * width, GATES * width) * ways
        parameters = lstm
        inner, passing = rows * _kept(spec, inputs, width, ways), rows * h * (GATES + 2) + sum(lstm)
        linear = 0
        if i == count:
            parameters = (self.model.vocab * h, *lstm, h * h, h)
            inner, linear = inner + rows * (3 * h + 2 * s), 2 * rows * h  # the queries' layer
        return UnitCost(parameters, entering, inner, passing, aside=entering + inner - linear)


def _kept(spec: RunSpec, inputs: int, width: int, ways: int) -> int:
    """Elements an LSTM keeps of one position: gates, cells, states and its input.

    The fp32 kernel for CPUs (oneDNN) keeps a work space instead, of about 6.1 x the larger of input and width and 9.3 x
    the width (measured, within 4 % from 64 to 512).
    """
    if spec.train.device == "cpu" and spec.train.precision == "fp32":
        return inputs + ways * (width + (61 * max(inputs, width) + 93 * width) // 10)
    return ways * (inputs + (GATES + 3) * width)
