"""Peak memory of a GPT's layers in a forward without autograd graph, in addition to their input.

This is the first forward of a block that is recomputed, which saves only its input (`engine.stage`). Each method
takes the maximum over the moments of a layer's forward.
"""

from __future__ import annotations

from parallel_core.outline.gpt_sizes import GptSizes, fused_attention, gathers_columns
from parallel_core.outline.temporaries import drawn


class GptForward(GptSizes):
    """Temporaries in forward. A function's argument lives until the function returns, a layer's input until the
    residual sum."""

    def _embedding(self) -> int:
        """Peak in the embedding: rows of the table, the same with zeros for other ranks' rows where the vocabulary is
        split, added positions, dropout."""
        entering = self._entering()
        mask = entering // self.spec.element_bytes if self.model.dropout else 0
        added = 2 * entering + mask if self.model.positions == "learned" or mask else entering
        shared = 2 * self._bsh() if self.tp > 1 else 0
        return max(shared, added, entering + drawn(self.spec, entering))

    def _attending(self) -> int:
        """Peak in attention: norm, queries, keys and values, core, second linear layer, and residual sum."""
        heads, rows = self._bsh() // self.tp, self._in_rows()
        return max(self._at_the_ends(), self._in_first(rows), rows + self._mixing(), self._made(heads, self._bsh()))

    def _through_mlp(self) -> int:
        """Peak in an MLP: norm, wide linear layer, activation, narrow linear layer, and residual sum."""
        rows, f = self.spec.micro_batch_size * self.model.seq, self.outline.ffn // self.tp
        wide = (2 if self.model.activation == "swiglu" else 1) * rows * f
        return max(self._at_the_ends(), self._in_first(wide), 2 * wide, self._made(rows * f, rows * self.outline.ffn))

    def _at_the_ends(self) -> int:
        """Peak at both ends of a layer: what the norm computes with and returns; the residual sum, its addend and
        dropout."""
        entering, wide, statistics = self._entering(), self.spec.fp32_elements, self._rows() * self.spec.fp32_elements
        norm = entering + 2 * statistics
        if self.model.norm == "rmsnorm" and self.spec.train.device == "cpu":
            norm = entering * (2 if wide == 1 else 1 + 2 * wide) + statistics
        return max(norm, self._added())

    def _added(self, read: bool = True) -> int:
        """Peak at the residual sum: sum, addend and dropout; under sequence parallelism, before that the
        reduce-scatter. Without a product (not `read`), its addend is in the memory of one number."""
        entering = self._entering()
        mask = entering // self.spec.element_bytes if self.model.dropout else 0
        if not read:
            return max(drawn(self.spec, entering), 2 * entering + mask if self.model.dropout else entering)
        scattered = self._bsh() + entering if self.spec.parallel.sequence else 0
        return max(scattered, entering + drawn(self.spec, entering), 2 * entering + mask)

    def _in_first(self, made: int) -> int:
        """Live in the first linear layer: the norm's output (gathered too, under sequence parallelism), and the layer's
        output `made`."""
        return self._entering() + (self._bsh() if self.spec.parallel.sequence else 0) + made

    def _made(self, mine: int, inputs: int) -> int:
        """Live in the second linear layer, with this rank's part `mine` of its `inputs`. With gathered columns, the
        ranks' columns arrive one after the other and are rearranged side by side, first those of the input, then
        those of the product."""
        bsh = self._bsh()
        if gathers_columns(self.spec):
            return mine + inputs + self._gathering(inputs)
        return mine + bsh + (self._entering() if self.spec.parallel.sequence else 0)

    def _gathering(self, inputs: int) -> int:
        """Temporaries of the second linear layer with gathered columns, in addition to its gathered `inputs`, which are
        saved where there is a graph: the columns received from the ranks, of inputs or product, and those of the
        product in order."""
        bsh = self._bsh()
        return max(inputs, bsh // self.tp + 2 * bsh) if gathers_columns(self.spec) else 0

    def _mixing(self) -> int:
        """Peak in the core, in addition to `qkv`."""
        heads, keys = self._bsh() // self.tp, self.outline.kv_heads // self.tp
        row_by_row = keys == 1 or self.outline.kv_heads == self.model.heads
        turned, queries = self._turned(), 0 if row_by_row else heads  # with several key-value groups they are copied
        turning = 0
        if turned:  # four half-size temporaries, first of queries, then of keys while the rotated queries are live
            turning, queries = max(queries + 2 * heads, queries + heads + 2 * (turned - heads)), 0
        fused = fused_attention(self.spec)
        repeated = 2 * heads if self._repeats() or (not fused and self.outline.kv_heads < self.model.heads) else 0
        if fused:
            return max(turning, turned + queries + repeated + heads + self._matrix())
        copies = 0 if self._seen_through() else heads
        products = max(2 * copies + self._matrix(), 2 * self._matrix(), 2 * self._matrix() + copies + heads)
        return max(turning, turned + queries + repeated + products)
