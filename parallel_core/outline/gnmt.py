"""Sizes of a translation model similar to GNMT (Wu et al. 2016): LSTM encoder, attention, LSTM decoder.

`layers` is the number of encoder layers, and of decoder layers. The tensor between encoder layers is [seq, hidden];
between decoder layers states and attention context are packed into one tensor [seq, 2 x hidden].
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from parallel_core.outline.base import Outline
from parallel_core.outline.onednn import lstm_bytes
from parallel_core.outline.temporaries import apart, in_embedding, product
from parallel_core.outline.unit_cost import UnitCost
from parallel_core.rules import rule_error

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec

ID_BYTES = 8
GATES = 4
MARKS = 4
"""Number of special tokens in a vocabulary: padding, begin, end, unknown (`data.pairs`)."""


class GnmtOutline(Outline):
    """`embed, block.0.encoder, ..., block.L.decoder, ..., head`: 2 x layers + 2 layers."""

    name = "GNMT"
    fields = ("layers", "hidden", "seq", "vocab", "dropout")
    target = "positions"
    corpora = ("django",)
    recurrent = True
    constant_ns = (18_000.0, 1.8), (25_000.0, 2.5)
    whole = "LSTM layers are not split over tensors: each position needs the one before"

    @property
    def targets(self) -> int:
        return self.model.seq

    def sample_bytes(self, real: int) -> int:
        """Bytes of source, target shifted by one, and target."""
        return 3 * ID_BYTES * self.model.seq

    @property
    def first_decoder(self) -> str:
        """The layer that embeds the target's words and attends to the encoder's states."""
        return f"block.{self.model.layers}.decoder"

    def check(self) -> None:
        hidden = self.model.hidden
        if hidden % 2:
            raise rule_error(
                ("model.hidden",),
                f"hidden={hidden} has no half for each direction of the first layer; try {hidden + 1}.",
            )
        if self.model.vocab < MARKS:
            raise rule_error(
                ("model.vocab",),
                f"vocab={self.model.vocab} has no room for the {MARKS} marks of a sentence (padding, begin, end, "
                f"unknown word); try {MARKS} or more.",
            )

    def units(self) -> list[str]:
        count = self.model.layers
        blocks = (f"block.{i}.{'encoder' if i < count else 'decoder'}" for i in range(2 * count))
        return ["embed", *blocks, "head"]

    @cached_property
    def readers(self) -> frozenset[str]:
        return frozenset({"embed", self.first_decoder, "head"})

    def boundaries(self) -> list[tuple[int, ...]]:
        s, h, count = self.model.seq, self.model.hidden, self.model.layers
        return [(), *([(s, h)] * (count + 1)), *([(s, 2 * h)] * count)]

    def flops(self) -> tuple[int, ...]:
        """An LSTM multiplies input and state by the matrices of four gates; the first layer has two directions of half
        the width."""
        s, h, count = self.model.seq, self.model.hidden, self.model.layers
        layer = 2 * s * GATES * h
        both, one = layer * (h + h // 2), layer * 2 * h
        attending = one + 2 * s * h * h + 4 * s * s * h
        rest = [layer * 3 * h] * (count - 1)
        return (s * h, both, *([one] * (count - 1)), attending, *rest, 2 * s * h * self.model.vocab)

    def product_flops(self) -> tuple[int, ...]:
        return (0, *self.flops()[1:])

    def by_autograd(self, unit: str) -> int | None:
        if unit == "head":
            return 0
        return -2 if unit == self.first_decoder else None

    def rows(self) -> list[tuple[int, ...]]:
        """Each direction has a matrix for the input, one for the state, and two biases, with a row per gate and state
        element."""
        h, vocab, count = self.model.hidden, self.model.vocab, self.model.layers
        lstm = (GATES * h,) * 4
        more = [lstm] * (count - 1)
        return [(vocab,), (GATES * h // 2,) * 8, *more, (vocab, *lstm, h, h), *more, (vocab,) * 2]

    def costs(self, spec: RunSpec) -> list[UnitCost]:
        h, vocab, rows = self.model.hidden, self.model.vocab, spec.micro_batch_size * self.model.seq
        logits, table = rows * vocab, vocab * h
        costs = [UnitCost((table,), 0, 0, rows * h + in_embedding(spec, table, rows * h, h))]
        for i in range(2 * self.model.layers):
            entering = spec.micro_batch_size * prod(self.boundaries()[i + 1])
            costs.append(self._layer(spec, i, entering))
        matrix, loss = product(spec, vocab * h), apart(spec, logits)
        passing, kept = max(rows * h + matrix, 3 * rows * h - logits), spec.fp32_elements * logits
        late = 4 * rows * h + matrix - passing  # W still needs its input, and the gradient of the logits
        head = UnitCost((vocab * h, vocab), 2 * rows * h, kept, passing, loss=loss, aside=loss, product=matrix)
        return [*costs, replace(head, put_off=late)]

    def _layer(self, spec: RunSpec, i: int, entering: int) -> UnitCost:
        """Returns the cost of LSTM layer `i`; the one with attention also saves queries, keys, attention weights and
        context."""
        h, s, count = self.model.hidden, self.model.seq, self.model.layers
        rows, inputs = spec.micro_batch_size * s, 2 * h if i > count else h
        width, ways = (h // 2, 2) if i == 0 else (h, 1)
        lstm = (GATES * width * inputs, GATES * width * width, GATES * width, GATES * width) * ways
        fused, wide, one = _fused(spec), spec.fp32_elements, ways * self._one_way(spec, inputs, width)
        parameters, inner, linear = lstm, one, 0
        copied = entering if (i > count if fused else i != count) else 0
        if fused:
            inner += rows * h + copied if i > count else rows * h  # a copy of the input of one, of the output of others
        if i == count:
            parameters = (self.model.vocab * h, *lstm, h * h, h)
            # States, scaled queries and keys, weights; in 16-bit runs all but the states in fp32, and values as well.
            inner, linear = inner + rows * (h + wide * (2 * h + s)), 2 * rows * h  # of the linear layer for queries
            if wide > 1:
                inner, copied = inner + wide * rows * h, entering
        passing = self._passing(spec, i, sum(lstm) // ways, inner - one)
        leaving = rows * h * (1 if i < count else 2)
        aside = entering + inner - linear
        late = one if fused and i not in (0, count) else 0  # those two add to other gradients first
        # Gates computed from the input for all positions, and the concatenated states of each direction.
        attended = inner - one if i == count else 0  # the LSTM runs before anything of attention exists
        forward = 0 if fused else max(0, rows * width * (GATES + ways) - attended)
        original = 0
        if i == count and wide > 1:  # attention copies to fp32, scales, and rounds weights and context
            forward, original = max(forward, rows * (8 * h + s)), entering
        alone = None if fused else max(attended, rows * width * (GATES + 1 + ways))  # gates and states only
        cost = UnitCost(parameters, entering, inner, passing, leaving=leaving, copied=copied, aside=aside)
        return replace(cost, late=late, forward=forward, original=original, alone=alone)

    def _one_way(self, spec: RunSpec, inputs: int, width: int) -> int:
        """Returns what an LSTM saves for its backward in one direction; with a fused kernel including its first and
        last states."""
        samples, seq, size = spec.micro_batch_size, self.model.seq, spec.element_bytes
        if not _fused(spec):
            return samples * seq * (inputs + (GATES + 3) * width)
        return lstm_bytes(inputs, width, seq, samples, size) // size + 4 * samples * width

    def _passing(self, spec: RunSpec, i: int, weights: int, let_go: int) -> int:
        """Returns the temporaries of layer `i`'s backward, without the gradient of its output.

        `weights`: size of the weights of one direction; `let_go`: what the layer saves for attention, freed by then.
        """
        h, count = self.model.hidden, self.model.layers
        rows = spec.micro_batch_size * self.model.seq
        if not _fused(spec):
            return self._by_position(rows, h if i else h // 2) + (2 * rows * h - let_go if i == count else 0)
        entering = rows * h * (2 if i > count else 1)
        # In 16-bit runs the kernel returns gradients in fp32, and that of the input is also held rounded.
        rounded = spec.fp32_elements - 1
        more = rounded * (weights + 2 * entering)
        if i == count:  # gradients of own and encoder states are live, what was saved for them is freed
            let_go = rounded * rows * (3 * spec.fp32_elements * h + spec.fp32_elements * self.model.seq - 3 * h)
            return max(weights + more - let_go, 3 * rows * h)
        return weights + more + rows * h * (2 if i > count else i == 0)

    def _by_position(self, rows: int, width: int) -> int:
        """Returns the temporaries of a backward that runs position by position (no fused kernel).

        The maximum of two moments, each less what has been freed by then: after two positions, the sum of the state's
        weight gradient, its next part and their new sum; after the first position of the text, the gates' gradients
        while they are concatenated.
        """
        state = GATES * width**2
        kept = GATES + 3
        through = 2 * rows // self.model.seq * width * (kept - GATES - 1)
        return max(3 * state - through, state + (2 * GATES - kept) * rows * width)


def _fused(spec: RunSpec) -> bool:
    """Whether oneDNN's CPU kernel runs an LSTM as one operation; for bf16 this assumes a CPU with AVX-512."""
    return spec.train.device == "cpu" and spec.train.precision in ("fp32", "bf16")
