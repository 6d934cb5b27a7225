"""Memory of a GPT's layers on a rank of a run: what they save for backward, and their temporaries.

Activations are those of Korthikanti et al. 2022, section 4.1, adapted to this model: dropout draws its masks again in
backward, so none is saved; fused attention saves a log-sum-exp per query in place of the s x s matrix; a
tensor-parallel group of t splits the heads and the MLP's columns, and with sequence parallelism (section 4.2.2) inputs
and norms too. For b samples, s positions, width h, a heads of d = h/a, k key-value heads, MLP width f, V tokens:

    attention   input bsh, norm bsh + 2bs, queries, keys and values bs(a + 2k)d/t, output bsh/t, log-sum-exp abs/t;
                rotary positions add rotated queries and keys bs(a + k)d/t, without them several key-value groups add
                a copy of the queries bsh/t; keys and values repeated for CUDA's fp32 kernel 2bsh/t; with the s x s
                matrix abs^2/t in place of the log-sum-exp, queries, keys and values are copied for the products,
                3bsh/t in all
    MLP         input bsh, norm bsh + 2bs, before and after GELU bsf/t each; SwiGLU gate, up, SiLU and product
    head        input bsh, norm bsh + 2bs, log-probabilities bsV/t

Where all linear layers are split by columns (`tensor.columns`), the second one of attention and of an MLP saves its
gathered input: bsh and bsf, in addition to the rank's own bsh/t (in the fused kernel) and bsf/t (before GELU).

What stays in fp32 in 16-bit runs (statistics of norms, log-sum-exp, log-probabilities) counts double.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from math import prod

from parallel_core.outline.gpt_backward import GptBackward
from parallel_core.outline.gpt_sizes import fused_attention, gathers_columns
from parallel_core.outline.recompute import recomputed
from parallel_core.outline.splits import split_dim
from parallel_core.outline.temporaries import apart, drawn, in_embedding, product
from parallel_core.outline.unit_cost import UnitCost


class GptCosts(GptBackward):
    """Memory of every layer: what it saves, and its temporaries."""

    def units(self) -> list[UnitCost]:
        """Returns the memory of every layer, in order."""
        whole = self._attention(), self._mlp()
        chosen = recomputed(self.spec.parallel, self.outline.units())
        again = self._recomputed(*whole) if chosen else whole
        blocks = (again if f"block.{i}" in chosen else whole for i in range(self.model.layers))
        return [self._embed(), *chain.from_iterable(blocks), self._head()]

    def _recomputed(self, attention: UnitCost, mlp: UnitCost) -> tuple[UnitCost, UnitCost]:
        """Returns the memory of a block that recomputes, in the run's way, from that of one that does not."""
        if self.spec.parallel.recompute == "full":
            return attention, replace(mlp, forward=self._in_narrow(again=True))
        core = replace(self._attention(again=True), inner=attention.inner - self._core(), core=self._again())
        return replace(core, aside=self._statistics()), mlp

    def _parameters(self, unit: int) -> tuple[int, ...]:
        """Returns the elements of each parameter of layer `unit` that a rank holds."""
        tp, how = self.tp, self.spec.parallel.tensor_split
        return tuple(
            prod(shape) // (1 if split_dim(f".{name}", how) is None else tp)
            for name, shape in self.outline.matrices()[unit].items()
        )

    def _embed(self) -> UnitCost:
        model = self.model
        table, out = model.vocab * model.hidden // self.tp, self._bsh()
        passing = out + in_embedding(self.spec, table, out, model.hidden)
        kept, drawing = self._found(), drawn(self.spec, self._entering())
        forward = self._embedding()
        return UnitCost(self._parameters(0), 0, kept, passing, drawn=drawing, aside=kept, forward=forward)

    def _attention(self, again: bool = False) -> UnitCost:
        """Returns the memory of attention, with its core saved, or recomputed (`again`)."""
        model, t, bsh, qkv = self.model, self.tp, self._bsh(), self._in_rows()
        gathered = gathers_columns(self.spec)
        if gathered:
            passing = max(self._in_core_backward(again), self._in_second(model.hidden))
            put_off = max(0, self._in_norm() - self._core() - passing)
        else:
            passing = self._in_attention(again)
            put_off = self._put_off_attention(again) - passing
        return UnitCost(
            parameters=self._parameters(1),
            boundary=self._entering(),
            inner=self._norm() + qkv + (bsh if gathered else bsh // t) + self._core(),
            passing=passing,
            put_off=put_off,
            outgoing=0 if gathered else self._entering(),
            gathered=2 * self._foreign(),
            let_go=bsh - bsh // t if gathered else 0,
            aside=self._core() + self._statistics(),
            drawn=self._drawn(),
            forward=max(self._in_core(), self._gathering(bsh), self._added()),
            alone=self._attending(),
        )

    def _drawn(self) -> int:
        """Live while a dropout's mask is drawn for the backward, including the incoming gradient."""
        return self._entering() + drawn(self.spec, self._entering()) if self.model.dropout else 0

    def _in_core(self) -> int:
        """Temporaries of the plain core's forward: scores, and queries, keys and values before they are copied."""
        if fused_attention(self.spec):
            return 0
        return self._matrix() + (0 if self._seen_through() else self._in_rows() + self._turned())

    def _mlp(self) -> UnitCost:
        model, bsh = self.model, self._bsh()
        h, rows, f = model.hidden, self.spec.micro_batch_size * model.seq, self.outline.ffn // self.tp
        wide = 2 * f if model.activation == "swiglu" else f
        kept, gathered, matrix = 2 * rows * wide, gathers_columns(self.spec), product(self.spec, h * wide)
        if gathered:
            kept += rows * (self.outline.ffn - f)
            passing = max(bsh + rows * (wide - self.outline.ffn) + matrix, self._in_second(self.outline.ffn))
            matrix, put_off = 0, max(0, self._in_norm() - passing)
        else:
            passing = self._in_mlp(wide)
            put_off = self._put_off_mlp(wide) - passing + matrix
        return UnitCost(
            parameters=self._parameters(2),
            boundary=self._entering(),
            inner=self._norm() + kept,
            passing=passing,
            product=matrix,
            put_off=put_off,
            outgoing=0 if gathered else self._entering(),
            gathered=2 * self._foreign(),
            let_go=bsh - bsh // self.tp if gathered else 0,
            aside=self._statistics() + (rows * f if model.activation == "swiglu" else 0),  # and SiLU of the gate
            drawn=self._drawn(),
            forward=self._in_narrow(again=False),
            alone=self._through_mlp(),
        )

    def _in_narrow(self, again: bool) -> int:
        """Temporaries of the forward of an MLP's last layer, with the activation's output, and of the residual sum;
        `again`: of its recomputation, which leaves out the product."""
        gathered = gathers_columns(self.spec)
        rows = self.spec.micro_batch_size * self.model.seq
        inputs, mine = rows * self.outline.ffn, rows * self.outline.ffn // self.tp
        gathering = mine + (inputs if again else self._gathering(inputs)) if gathered else 0
        return max(gathering, self._added(read=not again))

    def _head(self) -> UnitCost:
        model, t, bsh = self.model, self.tp, self._bsh()
        h, rows = model.hidden, self.spec.micro_batch_size * model.seq
        logits = rows * model.vocab // t
        matrix = product(self.spec, model.vocab * h // t)
        in_product = bsh + matrix + self._gathered() + self._scattered()
        passing = max(in_product, self._in_norm() - logits - self._entering())  # logits and input are freed by then
        return UnitCost(
            parameters=self._parameters(-1),
            boundary=self._entering(),
            inner=self._norm() + self.spec.fp32_elements * logits + self._found(),
            passing=passing,
            product=matrix,
            put_off=max(0, self._in_norm() - passing + matrix),
            gathered=self._foreign(),
            loss=apart(self.spec, logits),
            forward=apart(self.spec, logits) + self._sought(),  # the original 16-bit logits
            ends=True,
            # In 16-bit runs the fp32 log-probabilities are replaced by their gradient in 16 bits.
            aside=apart(self.spec, logits) + self._found() + self._statistics(),
        )

    def _found(self) -> int:
        """With a split vocabulary: the row of each token on this rank, and whether it has one."""
        return self.spec.micro_batch_size * self.model.seq * (8 + 1) // self.spec.element_bytes if self.tp > 1 else 0

    def _sought(self) -> int:
        """Further temporaries of the loss with a split vocabulary: targets; for each row the largest logit, the
        target's logit and the sum of exponentials, the latter two also stacked for the all-reduce; and the loss in two
        parts."""
        wide = self.spec.fp32_elements
        rows = self.spec.micro_batch_size * self.model.seq
        return rows * 8 // self.spec.element_bytes + 6 * wide * rows if self.tp > 1 else 0

    def _scattered(self) -> int:
        """This rank's rows of a gradient that is reduce-scattered under sequence parallelism."""
        return self._entering() if self.spec.parallel.sequence else 0

    def _foreign(self) -> int:
        """Elements of a layer's whole input that are other ranks' rows."""
        return self._bsh() - self._entering()
