"""Peak memory of the temporaries of a GPT's layers in backward, in addition to what the layers save.

Each method takes the maximum over the moments of a layer's backward. E is the gradient of a layer's output, for this
rank's rows; it is live throughout, since it also flows through the residual connection.
"""

from __future__ import annotations

from parallel_core.outline.gpt_forward import GptForward
from parallel_core.outline.gpt_sizes import fused_attention, gathers_columns
from parallel_core.outline.temporaries import product, widened


class GptBackward(GptForward):
    """Temporaries in backward. A linear layer frees its input once its gradients are computed, but not before W where
    backward is split."""

    def _norm(self) -> int:
        """Elements that a norm saves."""
        return self._entering() + self._statistics()

    def _statistics(self) -> int:
        """Statistics of each row, which only the norm's own backward needs."""
        return self._rows() * self.spec.fp32_elements * (2 if self.model.norm == "layernorm" else 1)

    def _core(self) -> int:
        """What the attention core saves in addition to `qkv`, without its output. Where it saves copies of all queries,
        keys and values, which its products use, `qkv` itself is freed and subtracted."""
        fused = fused_attention(self.spec)
        copies = self._repeats() and self._copies_queries() if fused else not self._seen_through()
        return self._again() - (self._in_rows() if copies else 0)

    def _again(self) -> int:
        """What the core makes of `qkv` and saves: copies, rotated queries and keys, probabilities or log-sum-exp."""
        heads, keys = self._bsh() // self.tp, self.outline.kv_heads // self.tp
        if not fused_attention(self.spec):
            return heads * (self._copied() if self._seen_through() else 3) + self._matrix()
        mixed = heads if gathers_columns(self.spec) else 0  # otherwise it is the second linear layer's saved input
        if self._repeats():
            return heads * (3 if self._copies_queries() else 2) + mixed + self._matrix()
        if self.model.positions == "rope":
            return self._turned() + mixed + self._matrix()
        gathered = heads if 1 < keys < self.model.heads // self.tp else 0  # queries of a single group are contiguous
        return gathered + mixed + self._matrix()

    def _in_norm(self) -> int:
        """Live in a norm's backward: gradients of its output and input; or, on a CPU, the former and what RMSNorm
        (`models.layers`) or in 16 bits LayerNorm (`models.row_sums`) computes with."""
        entering = self._entering()
        if self.model.norm == "rmsnorm" and self.spec.train.device == "cpu":
            return entering * (1 + 3 * self.spec.fp32_elements)
        return entering + max(entering, widened(self.spec, entering, self.model.hidden))

    def _in_attention(self, again: bool) -> int:
        """Peak in the backward of attention: second linear layer, core, first linear layer, by when what the core saved
        is freed, and norm, by when all that the linear layers saved is."""
        heads, h, queries = self._bsh() // self.tp, self.model.hidden, self.outline.qkv_rows
        second = self._masked() + self._gathered() + heads + product(self.spec, h * h // self.tp)
        first = self._bsh() + self._gathered() + product(self.spec, h * queries // self.tp)
        first -= heads + (self._again() if again else self._core())
        linear = self._entering() + max(second, self._in_core_backward(again), first)
        return max(linear, self._in_norm() - self._in_rows() - heads - self._core())

    def _in_mlp(self, wide: int) -> int:
        """Peak in the backward of an MLP: second linear layer, activation, first linear layer, by when its output and
        the activation are freed, and norm, by when its output is, too: where the MLP is hardly wider than the model."""
        rows, h, f = self.spec.micro_batch_size * self.model.seq, self.model.hidden, self.outline.ffn // self.tp
        second = self._masked() + self._gathered() + rows * f + product(self.spec, h * f)
        first = self._bsh() + self._gathered() + product(self.spec, h * wide) - rows * wide
        return max(self._entering() + max(second, rows * wide, first), self._in_norm() - 2 * rows * wide)

    def _in_core_backward(self, again: bool) -> int:
        """Temporaries in the core's backward. `again`: the core is recomputed.

        Fused: gradients of its output and of `qkv`, in parts as well where the core is recomputed. Plain: gradients
        of probabilities and of scores; those of values are freed together with the output by then; where the core is
        recomputed, its output and the gradient of that are held.
        """
        heads = self._bsh() // self.tp
        if self._repeats():
            return 4 * heads
        if fused_attention(self.spec):
            turned = self._turned() if again else self._in_rows()  # rotated queries and keys are freed by then
            return heads + self._in_rows() + max(0, self._in_rows() - turned)
        return 2 * self._matrix() + (heads if again else -heads)

    def _put_off_attention(self, again: bool) -> int:
        """Peak of attention's B where backward is split: the core's output is held to the end, for W.

        Where the core was recomputed (`again`), queries, keys and values are held while their gradients are merged
        into one tensor, as are the core's output and its gradient.
        """
        heads, rows = self._bsh() // self.tp, self._in_rows()
        mix = heads if again or not fused_attention(self.spec) else 0
        most = self._in_core_backward(again) + mix
        if fused_attention(self.spec) and again:
            most = max(most, 2 * rows + 2 * heads - self._again())
        return max(self._entering() + self._output() + most, self._in_norm() - self._core())

    def _put_off_mlp(self, wide: int) -> int:
        """Peak of an MLP's B where backward is split: the activation's output is held to the end, for W."""
        rows, f = self.spec.micro_batch_size * self.model.seq, self.outline.ffn // self.tp
        return max(self._entering() + self._output() + rows * f + rows * wide, self._in_norm())

    def _output(self) -> int:
        """The gradient of a second linear layer's output, which W needs, where it is a different tensor than E."""
        return self._gathered() or self._masked()

    def _in_second(self, inputs: int) -> int:
        """Temporaries in the backward of a linear layer with gathered columns, without the gradient of its output: its
        own columns of that, partial gradients of all its `inputs`, and the sum of its own ones."""
        t, bsh = self.tp, self._bsh()
        made = self.spec.micro_batch_size * self.model.seq * inputs
        return bsh // t + made + made // t + product(self.spec, self.model.hidden * inputs // t) + self._masked()

    def _masked(self) -> int:
        """The gradient after a dropout's backward, a different tensor than E, which flows through the residual
        connection."""
        return self._entering() if self.model.dropout else 0

    def _gathered(self) -> int:
        """A layer's input, or the gradient of its output, gathered from all ranks under sequence parallelism."""
        return self._bsh() if self.spec.parallel.sequence else 0
