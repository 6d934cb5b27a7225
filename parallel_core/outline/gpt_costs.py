"""What a GPT's layers keep and pass on a rank of a run: the terms of its memory.

The activations are those of Korthikanti et al. 2022, section 4.1, for this model: dropout draws its masks again in the
backward, so none is kept; fused attention keeps a log-sum-exp for each query instead of the s x s matrix; a tensor
group of t shares the heads and the MLP's columns, and with sequence parallelism (section 4.2.2) inputs and norms too.
b samples, s positions, width h, a heads of d = h/a, k heads of keys and values, MLP width f, V tokens:

    attention   input bsh, norm bsh + 2bs, queries, keys and values bs(a + 2k)d/t, their mix bsh/t, log-sum-exp abs/t;
                rotary positions add turned queries and keys bs(a + k)d/t, without them several shared keys a copy of
                the queries bsh/t; with the s x s matrix abs^2/t in place of the log-sum-exp, queries, keys and values
                are copies for the products, 3bsh/t in all
    MLP         input bsh, norm bsh + 2bs, before and behind GELU bsf/t each; SwiGLU gate, up, SiLU and product
    head        input bsh, norm bsh + 2bs, log-probabilities bsV/t

Where all linear layers are split by columns (`tensor.columns`), the second one of attention and of an MLP keeps its
input gathered: bsh and bsf beside the rank's own bsh/t (in the fused kernel) and bsf/t (before GELU).

What stays in fp32 where the rest has 16 bits (statistics of norms, log-sum-exp, log-probabilities) counts double.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from parallel_core.outline.base import UnitCost, apart, drawn, made, product
from parallel_core.outline.gpt_forward import GptForward
from parallel_core.outline.gpt_sizes import fused_attention, gathers_columns
from parallel_core.outline.recompute import recomputed
from parallel_core.outline.splits import split_dim


class GptCosts(GptForward):
    """Of every layer, what it keeps and passes."""

    def units(self) -> list[UnitCost]:
        """Of every layer, in order."""
        whole, mlp = self._attention(), self._mlp()
        blocks = [whole, mlp] * self.model.layers
        if self.spec.parallel.recompute == "selective":
            core, chosen = self._core(), recomputed(self.spec.parallel, self.outline.units())
            rebuilt = replace(self._attention(again=True), inner=whole.inner - core, core=self._again())
            rebuilt = replace(rebuilt, aside=self._statistics())
            blocks[::2] = [rebuilt if f"block.{i}" in chosen else whole for i in range(self.model.layers)]
        return [self._embed(), *blocks, self._head()]

    def _norm(self) -> int:
        """Elements that a norm keeps."""
        return self._entering() + self._statistics()

    def _statistics(self) -> int:
        """Of each row, which the norm's own backward needs alone."""
        return self._rows() * self.spec.fp32_elements * (2 if self.model.norm == "layernorm" else 1)

    def _in_norm(self) -> int:
        """Lives in a norm's backward: gradients of what it made and of what it took, or on a CPU the one, and what
        RMSNorm computes with (`models.layers`)."""
        alone = self.model.norm == "rmsnorm" and self.spec.train.device == "cpu"
        return self._entering() * (1 + 3 * self.spec.fp32_elements if alone else 2)

    def _parameters(self, unit: int) -> tuple[int, ...]:
        """Elements of each parameter of layer `unit` that a rank holds."""
        tp, how = self.tp, self.spec.parallel.tensor_split
        return tuple(
            prod(shape) // (1 if split_dim(f".{name}", how) is None else tp)
            for name, shape in self.outline.matrices()[unit].items()
        )

    def _embed(self) -> UnitCost:
        model = self.model
        table, out = model.vocab * model.hidden // self.tp, self._bsh()
        kept, drawing = self._found(), drawn(self.spec, self._entering())
        forward = self._embedding()
        return UnitCost(
            self._parameters(0), 0, kept, out + made(self.spec, table), drawn=drawing, aside=kept, forward=forward
        )

    def _attention(self, again: bool = False) -> UnitCost:
        """With its core kept, or made `again`."""
        model, t, bsh, qkv = self.model, self.tp, self._bsh(), self._in_rows()
        in_core = self._in_core_backward(again) + bsh
        if self.spec.parallel.sequence:  # gathered for the second linear layer, and let go by the core's backward
            in_core = max(in_core - bsh, bsh + bsh // t)
        gathered = gathers_columns(self.spec)
        passing = max(in_core - bsh, self._in_second(model.hidden)) if gathered else in_core
        return UnitCost(
            parameters=self._parameters(1),
            boundary=self._entering(),
            inner=self._norm() + qkv + (bsh if gathered else bsh // t) + self._core(),
            passing=passing,
            put_off=max(0, self._in_norm() - self._core() - passing, self._put_together(again) - passing),
            gathered=2 * self._foreign(),
            let_go=bsh - bsh // t if gathered else 0,
            aside=self._core() + self._statistics(),
            drawn=self._drawn(),
            forward=max(self._in_core(), self._gathering(bsh), self._added()),
            alone=self._attending(),
        )

    def _in_core_backward(self, again: bool) -> int:
        """Passes in the core's backward. Fused: gradients of its mix and of what it is made of, which are there in
        parts, too, where the core is made again. Plain: those of the probabilities and of what they were made of, and
        of values, which are let go with the mix by then; where the core is made again, its mix and that one's gradient
        are held."""
        heads = self._bsh() // self.tp
        if fused_attention(self.spec):
            turned = self._turned() if again else self._in_rows()  # the turned ones are let go by then
            return heads + self._in_rows() + max(0, self._in_rows() - turned)
        return 2 * self._matrix() + (heads if again else -heads)

    def _put_together(self, again: bool) -> int:
        """Passes, with W to come, when gradients of queries, keys and values become one: the core has let go of what it
        kept, but the mix is there, and where it was made `again` that one and its gradient."""
        if not fused_attention(self.spec) or gathers_columns(self.spec):
            return 0
        held = 2 * self._bsh() // self.tp - self._again() if again else -self._core()
        return 2 * self._in_rows() + held + self._bsh() + self._own_rows()

    def _own_rows(self) -> int:
        """The gradient of an output's rows that this rank has, beside all rows, which W needs."""
        return self._entering() if self.spec.parallel.sequence else 0

    def _in_second(self, inputs: int) -> int:
        """Passes in the backward of a gathering linear layer beside the gradient of its output: its own columns of
        that, a part of the gradient of all its `inputs`, and the sum of its own ones."""
        t, bsh = self.tp, self._bsh()
        made = self.spec.micro_batch_size * self.model.seq * inputs
        return bsh // t + made + made // t + product(self.spec, self.model.hidden * inputs // t) + self._masked()

    def _masked(self) -> int:
        """The gradient behind a dropout, beside the one before it, which goes round the layer."""
        return self._entering() if self.model.dropout else 0

    def _drawn(self) -> int:
        """Passes while a dropout's mask is drawn for the backward, the gradient before it among it."""
        return self._entering() + drawn(self.spec, self._entering()) if self.model.dropout else 0

    def _core(self) -> int:
        """What the core of attention keeps beyond queries, keys and values as they came, but the mix itself. The plain
        core lets go of those where it keeps copies of all of them, which its products are made of."""
        return self._again() - (0 if fused_attention(self.spec) or self._seen_through() else self._in_rows())

    def _again(self) -> int:
        """What it makes of them: copies, the turned ones, probabilities or log-sum-exp."""
        heads, keys = self._bsh() // self.tp, self.outline.kv_heads // self.tp
        if not fused_attention(self.spec):
            return heads * (self._copied() if self._seen_through() else 3) + self._matrix()
        mixed = heads if gathers_columns(self.spec) else 0  # else it is the second layer's own input
        if self.model.positions == "rope":
            return self._turned() + mixed + self._matrix()
        gathered = heads if 1 < keys < self.model.heads // self.tp else 0  # of one group they lie in a row
        return gathered + mixed + self._matrix()

    def _in_core(self) -> int:
        """Lives in the plain core beside what it keeps: scores, and queries, keys and values before they are copied."""
        if fused_attention(self.spec):
            return 0
        return self._matrix() + (0 if self._seen_through() else self._in_rows() + self._turned())

    def _mlp(self) -> UnitCost:
        model, bsh = self.model, self._bsh()
        h, rows, f = model.hidden, self.spec.micro_batch_size * model.seq, self.outline.ffn // self.tp
        wide = 2 * f if model.activation == "swiglu" else f
        kept, gathered, matrix = 2 * rows * wide, gathers_columns(self.spec), product(self.spec, h * wide)
        passing = bsh + rows * wide + matrix
        if gathered:
            matrix = 0
            kept += rows * (self.outline.ffn - f)
            passing = max(passing - rows * self.outline.ffn, self._in_second(self.outline.ffn))
        else:
            passing += self._masked()
        return UnitCost(
            parameters=self._parameters(2),
            boundary=self._entering(),
            inner=self._norm() + kept,
            passing=passing,
            product=matrix,
            put_off=max(0 if gathered else rows * f + self._own_rows(), self._in_norm() - passing + matrix),
            gathered=2 * self._foreign(),
            let_go=bsh - bsh // self.tp if gathered else 0,
            aside=self._statistics() + (rows * f if model.activation == "swiglu" else 0),  # SiLU of the gate
            drawn=self._drawn(),
            forward=max(
                self._added(), rows * f + self._gathering(rows * self.outline.ffn) if gathered else 0
            ),  # what was activated, too
            alone=self._through_mlp(),
        )

    def _head(self) -> UnitCost:
        model, t, bsh = self.model, self.tp, self._bsh()
        h, rows = model.hidden, self.spec.micro_batch_size * model.seq
        logits = rows * model.vocab // t
        matrix = product(self.spec, model.vocab * h // t)
        in_product = bsh + matrix + self._gathered() + self._scattered()
        passing = max(in_product, self._in_norm() - logits - self._entering())  # behind it those are gone
        return UnitCost(
            parameters=self._parameters(-1),
            boundary=self._entering(),
            inner=self._norm() + self.spec.fp32_elements * logits + self._found(),
            passing=passing,
            product=matrix,
            put_off=max(0, self._in_norm() - passing + matrix),
            gathered=self._foreign(),
            loss=apart(self.spec, logits),
            forward=apart(self.spec, logits) + self._sought(),  # as they came, in 16 bits
            ends=True,
            # Of log-probabilities in fp32 their gradient is left, in 16 bits.
            aside=apart(self.spec, logits) + self._found() + self._statistics(),
        )

    def _found(self) -> int:
        """Where the group shares a vocabulary: of each token its row on this rank and whether it has one."""
        return self.spec.micro_batch_size * self.model.seq * (8 + 1) // self.spec.element_bytes if self.tp > 1 else 0

    def _sought(self) -> int:
        """Lives there beside logits and what is kept: targets, the greatest logit of each, its target's and its sum of
        weights, both again for the group's, and the loss in two parts."""
        wide = self.spec.fp32_elements
        rows = self.spec.micro_batch_size * self.model.seq
        return rows * 8 // self.spec.element_bytes + 6 * wide * rows if self.tp > 1 else 0

    def _gathered(self) -> int:
        """A layer's input, or the gradient of its output, where a rank has its rows alone and gathers the others."""
        return self._bsh() if self.spec.parallel.sequence else 0

    def _scattered(self) -> int:
        """What a rank gets of a gradient of which each has its rows."""
        return self._entering() if self.spec.parallel.sequence else 0

    def _foreign(self) -> int:
        """How much of that are other ranks' rows."""
        return self._bsh() - self._entering()
