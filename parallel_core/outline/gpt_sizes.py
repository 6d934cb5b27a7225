"""Basic sizes from which the memory of a GPT on a rank of a run is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parallel_core.model_spec import ModelSpec
    from parallel_core.outline.gpt import GptOutline
    from parallel_core.spec import RunSpec


def fused_attention(spec: RunSpec) -> bool:
    """Whether attention runs without materializing its s x s matrix: PyTorch has no fused fp64 kernel on CUDA."""
    if spec.model.attention == "plain":
        return False
    return spec.train.device == "cpu" or spec.train.precision != "fp64"


def gathers_columns(spec: RunSpec) -> bool:
    """Whether the second linear layers of a block gather their inputs and outputs (column split)."""
    return spec.parallel.tensor_split == "columns" and spec.parallel.tp > 1


@dataclass(frozen=True)
class GptSizes:
    """Sizes of the model of `outline` in the run `spec`, in elements; activations are those of one micro-batch on one
    rank."""

    outline: GptOutline
    spec: RunSpec

    @property
    def model(self) -> ModelSpec:
        return self.outline.model

    @property
    def tp(self) -> int:
        return self.spec.parallel.tp

    def _rows(self) -> int:
        """Positions of a micro-batch that a rank's norms and residual sums work on."""
        return self.spec.micro_batch_size * self.model.seq // (self.tp if self.spec.parallel.sequence else 1)

    def _entering(self) -> int:
        """Input of a layer, for this rank's rows."""
        return self._rows() * self.model.hidden

    def _bsh(self) -> int:
        """Input of a layer, for all rows."""
        return self.spec.micro_batch_size * self.model.seq * self.model.hidden

    def _in_rows(self) -> int:
        """Queries, keys and values as the first linear layer outputs them (`qkv`)."""
        return self.spec.micro_batch_size * self.model.seq * self.outline.qkv_rows // self.tp

    def _turned(self) -> int:
        """Rotated queries and keys; 0 without rotary positions."""
        turned = self._bsh() // self.tp * (self.outline.kv_heads + self.model.heads) // self.model.heads
        return turned if self.model.positions == "rope" else 0

    def _repeats(self) -> bool:
        """Whether keys and values are repeated for each query head (`models.attention.shares_no_keys`).

        In 16-bit runs this also happens on GPUs before compute capability 8.0, but a spec does not name the GPU.
        """
        shared, train = self.outline.kv_heads < self.model.heads, self.spec.train
        return shared and train.device == "cuda" and train.precision == "fp32" and fused_attention(self.spec)

    def _copies_queries(self) -> bool:
        """Whether queries are a separate tensor from keys and values in the core's products: rotated, or of several
        groups."""
        return self.model.positions == "rope" or self.outline.kv_heads > self.tp

    def _matrix(self) -> int:
        """Attention probabilities, or with fused attention one log-sum-exp per query."""
        rows = self.spec.micro_batch_size * self.model.seq * self.model.heads // self.tp
        return rows * (self.spec.fp32_elements if fused_attention(self.spec) else self.model.seq)

    def _seen_through(self) -> bool:
        """Whether the plain core's products read queries or values directly from the first linear layer's output,
        without a copy: samples or heads are their only batch dimension, which can have any stride."""
        alone = self.outline.kv_heads == self.tp and self.model.positions != "rope"
        straight = self.spec.micro_batch_size == 1 or self.model.heads == self.tp
        return straight and (self.outline.kv_heads == self.model.heads or alone)

    def _copied(self) -> int:
        """How many of queries, keys and values are copied nevertheless (rotated, or repeated), in units of queries."""
        return 2 if self.model.positions == "rope" or self.outline.kv_heads < self.model.heads else 0
