"""Sizes of a decoder-only transformer: parameters and FLOPs, independent of the framework."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from parallel_core.plan.cluster.problems import Problems
from parallel_core.plan.cluster.store import rows
from parallel_core.rules import divisors

MOST = {"hidden": 1 << 20, "layers": 4096, "heads": 4096, "kv_heads": 4096, "ffn": 1 << 22, "vocab": 1 << 24}
MOST_SEQ = 1 << 22


@dataclass(frozen=True, slots=True)
class Transformer:
    """GPT (`gated` false: ffn -> GeLU -> hidden, biases, dropout) or Llama (`gated`: SwiGLU, no biases, no dropout).

    `kv_heads` below `heads` is grouped-query attention. `seq`: tokens of a training sequence. `tied`: embedding and
    output layer share one matrix.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int
    gated: bool = False
    tied: bool = True
    source: str = ""

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def kv_width(self) -> int:
        """Width of the keys (and of the values), over all key heads."""
        return self.head_dim * self.kv_heads

    @property
    def layer_matrices(self) -> int:
        """Elements of a layer's weight matrices: 12 h^2 for GPT."""
        attention = self.hidden * (2 * self.hidden + 2 * self.kv_width)
        return attention + self.hidden * self.ffn * (3 if self.gated else 2)

    @property
    def layer_vectors(self) -> int:
        """Elements of a layer's norms and biases, about a thousandth of the matrices'."""
        if self.gated:
            return 2 * self.hidden
        return 4 * self.hidden + (self.hidden + 2 * self.kv_width) + 2 * self.hidden + self.ffn

    def splits_heads(self, tp: Any) -> Any:
        """Whether `tp` ranks (a number or an array) can share the attention: they divide the heads, and the key heads,
        or are a multiple of these, which then have copies (Megatron-LM's TransformerConfig)."""
        return (self.heads % tp == 0) & ((self.kv_heads % tp == 0) | (tp % self.kv_heads == 0))

    @property
    def tensor_widths(self) -> list[int]:
        """Sizes of a tensor group that the layers can be split over, ascending. The vocabulary is padded to any."""
        return [tp for tp in divisors(self.heads) if self.splits_heads(tp) and self.ffn % tp == 0]

    def adapter(self, rank: int) -> int:
        """Elements of low-rank adapters for all matrices of a layer, r (in + out) each (Hu et al. 2021, 4.1)."""
        attention = 6 * self.hidden + 2 * self.kv_width
        return rank * (attention + (self.hidden + self.ffn) * (3 if self.gated else 2))

    @property
    def embedding(self) -> int:
        """Elements of the token embedding; an untied output layer has as many."""
        return self.vocab * self.hidden

    @property
    def positions(self) -> int:
        """Elements of learned position embeddings; 0 for rotary ones."""
        return 0 if self.gated else self.seq * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters; a tied matrix counts once."""
        each = self.layer_matrices + self.layer_vectors
        ends = self.embedding * (1 if self.tied else 2) + self.positions
        return self.layers * each + ends + self.hidden * (1 if self.gated else 2)

    def flops(self, sequences: float) -> float:
        """FLOPs of a training step without recomputation: Korthikanti et al. 2022, equation 7, for any widths."""
        tokens = sequences * self.seq
        layer = 2 * self.layer_matrices + 4 * self.seq * self.hidden
        return 3 * tokens * (self.layers * layer + 2 * self.embedding)

    def problems(self) -> dict[str, str]:
        """`{field: message}` for impossible values."""
        found = Problems()
        for field, most in MOST.items():
            found.whole(field, getattr(self, field), 1, most)
        found.whole("seq", self.seq, 1, MOST_SEQ)
        if not found.messages:
            found.divides("heads", self.heads, "hidden", self.hidden)
            found.divides("kv_heads", self.kv_heads, "heads", self.heads)
        return found.messages


@lru_cache(maxsize=1)
def presets() -> dict[str, Transformer]:
    """Models by key, smallest first; data and sources are in `data/models.json`."""
    names = {field.name for field in fields(Transformer)}
    return {row["key"]: Transformer(**{k: v for k, v in row.items() if k in names}) for row in rows("models")}
