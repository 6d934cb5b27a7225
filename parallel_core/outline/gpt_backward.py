"""What a GPT's layers pass in a backward: most of all of their instants, beside what they keep.

E = the gradient of a layer's output, that of this rank's rows: it goes round the layer, too.
"""

from __future__ import annotations

from parallel_core.outline.base import product
from parallel_core.outline.gpt_forward import GptForward
from parallel_core.outline.gpt_sizes import fused_attention, gathers_columns


class GptBackward(GptForward):
    """A linear layer lets go of its input when its gradients are made, with W to come it does not."""

    def _norm(self) -> int:
        """Elements that a norm keeps."""
        return self._entering() + self._statistics()

    def _statistics(self) -> int:
        """Of each row, which the norm's own backward needs alone."""
        return self._rows() * self.spec.fp32_elements * (2 if self.model.norm == "layernorm" else 1)

    def _core(self) -> int:
        """What the core of attention keeps beyond queries, keys and values as they came, but the mix itself. It lets go
        of those where it keeps copies of all of them, which its products are made of."""
        fused = fused_attention(self.spec)
        copies = self._repeats() and self._copies_queries() if fused else not self._seen_through()
        return self._again() - (self._in_rows() if copies else 0)

    def _again(self) -> int:
        """What it makes of them: copies, the turned ones, probabilities or log-sum-exp."""
        heads, keys = self._bsh() // self.tp, self.outline.kv_heads // self.tp
        if not fused_attention(self.spec):
            return heads * (self._copied() if self._seen_through() else 3) + self._matrix()
        mixed = heads if gathers_columns(self.spec) else 0  # else it is the second layer's own input
        if self._repeats():
            return heads * (3 if self._copies_queries() else 2) + mixed + self._matrix()
        if self.model.positions == "rope":
            return self._turned() + mixed + self._matrix()
        gathered = heads if 1 < keys < self.model.heads // self.tp else 0  # of one group they lie in a row
        return gathered + mixed + self._matrix()

    def _in_norm(self) -> int:
        """Lives in a norm's backward: gradients of what it made and of what it took, or on a CPU the one, and what
        RMSNorm computes with (`models.layers`)."""
        alone = self.model.norm == "rmsnorm" and self.spec.train.device == "cpu"
        return self._entering() * (1 + 3 * self.spec.fp32_elements if alone else 2)

    def _in_attention(self, again: bool) -> int:
        """The second linear layer, the core, and the first linear layer, by when what the core kept is gone."""
        heads, h, queries = self._bsh() // self.tp, self.model.hidden, self.outline.qkv_rows
        second = self._masked() + self._gathered() + heads + product(self.spec, h * h // self.tp)
        first = self._bsh() + self._gathered() + product(self.spec, h * queries // self.tp)
        first -= heads + (self._again() if again else self._core())
        return self._entering() + max(second, self._in_core_backward(again), first)

    def _in_mlp(self, wide: int) -> int:
        """The second linear layer, what is between, and the first one, whose output is gone with all made of it."""
        rows, h, f = self.spec.micro_batch_size * self.model.seq, self.model.hidden, self.outline.ffn // self.tp
        second = self._masked() + self._gathered() + rows * f + product(self.spec, h * f)
        first = self._bsh() + self._gathered() + product(self.spec, h * wide) - rows * wide
        return self._entering() + max(second, rows * wide, first)

    def _in_core_backward(self, again: bool) -> int:
        """Passes in the core's backward. Fused: gradients of its mix and of what it is made of, which are there in
        parts, too, where the core is made again. Plain: those of the probabilities and of what they were made of, and
        of values, which are let go with the mix by then; where the core is made again, its mix and that one's gradient
        are held."""
        heads = self._bsh() // self.tp
        if self._repeats():
            return 4 * heads
        if fused_attention(self.spec):
            turned = self._turned() if again else self._in_rows()  # the turned ones are let go by then
            return heads + self._in_rows() + max(0, self._in_rows() - turned)
        return 2 * self._matrix() + (heads if again else -heads)

    def _put_off_attention(self, again: bool) -> int:
        """All that passes with W to come: the mix is there to the end. Where it was made `again`, queries, keys and
        values are held while their gradients become one, as are that mix and its gradient."""
        heads, rows = self._bsh() // self.tp, self._in_rows()
        mix = heads if again or not fused_attention(self.spec) else 0
        most = self._in_core_backward(again) + mix
        if fused_attention(self.spec) and again:
            most = max(most, 2 * rows + 2 * heads - self._again())
        return max(self._entering() + self._output() + most, self._in_norm() - self._core())

    def _put_off_mlp(self, wide: int) -> int:
        """The same: what the activation made is there to the end."""
        rows, f = self.spec.micro_batch_size * self.model.seq, self.outline.ffn // self.tp
        return max(self._entering() + self._output() + rows * f + rows * wide, self._in_norm())

    def _output(self) -> int:
        """The gradient of a second linear layer's output, which W needs, where that is another tensor than E."""
        return self._gathered() or self._masked()

    def _in_second(self, inputs: int) -> int:
        """Passes in the backward of a gathering linear layer beside the gradient of its output: its own columns of
        that, a part of the gradient of all its `inputs`, and the sum of its own ones."""
        t, bsh = self.tp, self._bsh()
        made = self.spec.micro_batch_size * self.model.seq * inputs
        return bsh // t + made + made // t + product(self.spec, self.model.hidden * inputs // t) + self._masked()

    def _masked(self) -> int:
        """The gradient behind a dropout, beside the one before it, which goes round the layer."""
        return self._entering() if self.model.dropout else 0

    def _gathered(self) -> int:
        """A layer's input, or the gradient of its output, where a rank has its rows alone and gathers the others."""
        return self._bsh() if self.spec.parallel.sequence else 0
