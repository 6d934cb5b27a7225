"""What a GPT's layers hold in a forward that keeps no graph: most of all of their instants, beside their input.

It is the first forward of a block that is recomputed, which keeps its input alone (`engine.stage`).
"""

from __future__ import annotations

from parallel_core.outline.base import drawn
from parallel_core.outline.gpt_sizes import GptSizes, fused_attention, gathers_columns


class GptForward(GptSizes):
    """An argument lives until the function that it was given to is through, a layer's input until it is added."""

    def _embedding(self) -> int:
        """Rows of the table, the same with zeros for other ranks' where those share it, positions added, dropout."""
        entering = self._entering()
        mask = entering // self.spec.element_bytes if self.model.dropout else 0
        added = 2 * entering + mask if self.model.positions == "learned" or mask else entering
        shared = 2 * self._bsh() if self.tp > 1 else 0
        return max(shared, added, entering + drawn(self.spec, entering))

    def _attending(self) -> int:
        """Norm, queries with keys and values, the core, the second linear layer, and the sum."""
        heads, rows = self._bsh() // self.tp, self._in_rows()
        return max(self._at_the_ends(), self._in_first(rows), rows + self._mixing(), self._made(heads, self._bsh()))

    def _through_mlp(self) -> int:
        """Norm, the wide layer, what is between, the narrow one, and the sum."""
        rows, f = self.spec.micro_batch_size * self.model.seq, self.outline.ffn // self.tp
        wide = (2 if self.model.activation == "swiglu" else 1) * rows * f
        return max(self._at_the_ends(), self._in_first(wide), 2 * wide, self._made(rows * f, rows * self.outline.ffn))

    def _at_the_ends(self) -> int:
        """What a norm computes with and makes; what is added to the input, with its dropout, and the sum."""
        entering, wide, statistics = self._entering(), self.spec.fp32_elements, self._rows() * self.spec.fp32_elements
        norm = entering + 2 * statistics
        if self.model.norm == "rmsnorm" and self.spec.train.device == "cpu":
            norm = entering * (2 if wide == 1 else 1 + 2 * wide) + statistics
        return max(norm, self._added())

    def _added(self) -> int:
        """What is added to the input, with its dropout, and the sum; before, what each rank has for the rows of all."""
        entering = self._entering()
        mask = entering // self.spec.element_bytes if self.model.dropout else 0
        scattered = self._bsh() + entering if self.spec.parallel.sequence else 0
        return max(scattered, entering + drawn(self.spec, entering), 2 * entering + mask)

    def _in_first(self, made: int) -> int:
        """What the norm made, with all rows of it where each rank has some, and what the layer makes of it."""
        return self._entering() + (self._bsh() if self.spec.parallel.sequence else 0) + made

    def _made(self, mine: int, inputs: int) -> int:
        """In the second linear layer, of this rank's part of its `inputs`: of columns gathered ones come rank by rank
        and are put side by side, first those of the input, then those of the product."""
        bsh = self._bsh()
        if gathers_columns(self.spec):
            return mine + inputs + self._gathering(inputs)
        return mine + bsh + (self._entering() if self.spec.parallel.sequence else 0)

    def _gathering(self, inputs: int) -> int:
        """In the second linear layer beside its gathered `inputs`, which are kept where a graph is: columns that came
        rank by rank, of the inputs or of the product, and those of that in order."""
        bsh = self._bsh()
        return max(inputs, bsh // self.tp + 2 * bsh) if gathers_columns(self.spec) else 0

    def _mixing(self) -> int:
        """In the core beside queries, keys and values as they came."""
        heads, keys = self._bsh() // self.tp, self.outline.kv_heads // self.tp
        row_by_row = keys == 1 or self.outline.kv_heads == self.model.heads
        turned, queries = self._turned(), 0 if row_by_row else heads  # of several shared keys they are copied
        turning = 0
        if turned:  # four halves at a time, of keys beside the queries that were turned
            turning, queries = max(queries + 2 * heads, queries + heads + 2 * (turned - heads)), 0
        fused = fused_attention(self.spec)
        repeated = 2 * heads if self._repeats() or (not fused and self.outline.kv_heads < self.model.heads) else 0
        if fused:
            return max(turning, turned + queries + repeated + heads + self._matrix())
        copies = 0 if self._seen_through() else heads
        products = max(2 * copies + self._matrix(), 2 * self._matrix(), 2 * self._matrix() + copies + heads)
        return max(turning, turned + queries + repeated + products)
