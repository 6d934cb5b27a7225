"""Sizes that the terms of a GPT's memory are made of, on a rank of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parallel_core.model_spec import ModelSpec
    from parallel_core.outline.gpt import GptOutline
    from parallel_core.spec import RunSpec


def fused_attention(spec: RunSpec) -> bool:
    """Whether attention runs without keeping its s x s matrix: PyTorch has no fused fp64 kernel on CUDA."""
    if spec.model.attention == "plain":
        return False
    return spec.train.device == "cpu" or spec.train.precision != "fp64"


def gathers_columns(spec: RunSpec) -> bool:
    """Whether the second linear layers of a block gather what they take and what they make."""
    return spec.parallel.tensor_split == "columns" and spec.parallel.tp > 1


@dataclass(frozen=True)
class GptSizes:
    """Of the model of `outline` in the run `spec`. Numbers are elements; of activations those of one micro-batch."""

    outline: GptOutline
    spec: RunSpec

    @property
    def model(self) -> ModelSpec:
        return self.outline.model

    @property
    def tp(self) -> int:
        return self.spec.parallel.tp

    def _rows(self) -> int:
        """Positions of a micro-batch that norms and residual sums of one rank see."""
        return self.spec.micro_batch_size * self.model.seq // (self.tp if self.spec.parallel.sequence else 1)

    def _entering(self) -> int:
        return self._rows() * self.model.hidden

    def _bsh(self) -> int:
        return self.spec.micro_batch_size * self.model.seq * self.model.hidden

    def _in_rows(self) -> int:
        """Queries, keys and values as the first linear layer makes them."""
        return self.spec.micro_batch_size * self.model.seq * self.outline.qkv_rows // self.tp

    def _turned(self) -> int:
        """Queries and keys that rotary positions make of those that came."""
        turned = self._bsh() // self.tp * (self.outline.kv_heads + self.model.heads) // self.model.heads
        return turned if self.model.positions == "rope" else 0

    def _repeats(self) -> bool:
        """Whether each query gets keys and values of its own (`models.attention.shares_no_keys`). In 16 bits it does on
        GPUs before compute capability 8.0, too; a spec does not say which GPU."""
        shared, train = self.outline.kv_heads < self.model.heads, self.spec.train
        return shared and train.device == "cuda" and train.precision == "fp32" and fused_attention(self.spec)

    def _copies_queries(self) -> bool:
        """Whether queries are apart from keys and values before the core's products: turned, or of several groups."""
        return self.model.positions == "rope" or self.outline.kv_heads > self.tp

    def _matrix(self) -> int:
        """Probabilities, or in their place one log-sum-exp a query."""
        rows = self.spec.micro_batch_size * self.model.seq * self.model.heads // self.tp
        return rows * (self.spec.fp32_elements if fused_attention(self.spec) else self.model.seq)

    def _seen_through(self) -> bool:
        """Whether a product of the plain core reads queries or values where the first linear layer made them: samples
        or heads are its only batch, which any stride can step through."""
        alone = self.outline.kv_heads == self.tp and self.model.positions != "rope"
        straight = self.spec.micro_batch_size == 1 or self.model.heads == self.tp
        return straight and (self.outline.kv_heads == self.model.heads or alone)

    def _copied(self) -> int:
        """Of queries, keys and values of one sample, those that are copies all the same: turned, or repeated."""
        return 2 if self.model.positions == "rope" or self.outline.kv_heads < self.model.heads else 0
