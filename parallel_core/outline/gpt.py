"""The GPT's sizes: parameters, kept activations, passing tensors and FLOPs of each of its layers.

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
from typing import TYPE_CHECKING

from parallel_core.outline.base import Outline, UnitCost
from parallel_core.outline.recompute import recomputed
from parallel_core.outline.splits import split_dim
from parallel_core.rules import divisors, few, rule

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec

_ID_BYTES = 8


def fused_attention(spec: RunSpec) -> bool:
    """Whether attention runs without keeping its s x s matrix: PyTorch has no fused fp64 kernel on CUDA."""
    if spec.model.attention == "plain":
        return False
    return spec.train.device == "cpu" or spec.train.precision != "fp64"


def gathers_columns(spec: RunSpec) -> bool:
    """Whether the second linear layers of a block gather what they take and what they make."""
    return spec.parallel.tensor_split == "columns" and spec.parallel.tp > 1


def _apart(spec: RunSpec, matrix: int) -> int:
    """Elements of a product for a weight before it is added to the sum: in 16 bits, which are narrower than that."""
    return matrix if spec.fp32_elements > 1 else 0


class GptOutline(Outline):
    """`embed, block.0.attn, block.0.mlp, ..., head`: 2 x layers + 2 layers."""

    fields = (
        *("layers", "hidden", "heads", "kv_heads", "ffn", "seq", "vocab"),
        *("positions", "rope_base", "activation", "norm", "bias", "attention", "tied", "dropout"),
    )
    target = "tokens"
    corpora = ("stdlib", "blob", "tokens")

    @property
    def title(self) -> str:
        return f"GPT {self.model.layers} x {self.model.hidden}"

    @property
    def targets(self) -> int:
        return self.model.seq

    @property
    def sample_bytes(self) -> int:
        """Inputs, and targets beside them."""
        return 2 * _ID_BYTES * (self.model.seq + 1)

    @property
    def kv_heads(self) -> int:
        return self.model.kv_heads or self.model.heads

    @property
    def head_dim(self) -> int:
        return self.model.hidden // self.model.heads

    @property
    def ffn(self) -> int:
        """Width of the MLP."""
        if self.model.ffn is not None:
            return self.model.ffn
        if self.model.activation == "gelu":
            return 4 * self.model.hidden
        step = 8 * self.model.heads
        return -(-8 * self.model.hidden // (3 * step)) * step

    def check(self) -> None:
        model = self.model
        if model.hidden % model.heads:
            near = [d for d in divisors(model.hidden) if d <= 256]
            raise rule(
                ("model.heads", "model.hidden"),
                f"heads={model.heads} does not divide hidden={model.hidden}; try one of {few(near, model.heads)}.",
            )
        if model.heads % self.kv_heads:
            raise rule(
                ("model.kv_heads", "model.heads"),
                f"kv_heads={self.kv_heads} does not divide heads={model.heads}; "
                f"try one of {few(divisors(model.heads), self.kv_heads)}.",
            )
        if model.positions != "rope" and model.rope_base != type(model).model_fields["rope_base"].default:
            raise rule(
                ("model.rope_base", "model.positions"),
                f"positions={model.positions} has no rope_base; use positions=rope, or leave rope_base at 10000.",
            )
        if model.positions == "rope" and self.head_dim % 2:
            even = [d for d in divisors(model.hidden) if model.hidden // d % 2 == 0]
            advice = f"try heads of {few(even, model.heads)}" if even else f"try hidden={model.hidden + 1}"
            raise rule(
                ("model.heads", "model.positions"),
                f"RoPE turns pairs, but a head has {self.head_dim} dimensions; {advice}.",
            )

    def check_tensor(self, tp: int, field: str) -> None:
        model = self.model
        shared = {"heads": model.heads, "kv_heads": self.kv_heads, "vocab": model.vocab, "ffn": self.ffn}
        for leaf, value in shared.items():
            if value % tp:
                raise rule(
                    (field, f"model.{leaf}"),
                    f"tensor={tp} does not divide {leaf}={value}; try {few(divisors(value), tp)}.",
                )

    def units(self) -> list[str]:
        blocks = (f"block.{i}.{part}" for i in range(self.model.layers) for part in ("attn", "mlp"))
        return ["embed", *blocks, "head"]

    def boundaries(self) -> list[tuple[int, ...]]:
        shape = (self.model.seq, self.model.hidden)
        return [(), *([shape] * (2 * self.model.layers + 1))]

    def flops(self) -> tuple[int, ...]:
        """As in Narayanan et al. 2021 (appendix, equation 2): attention 8 s h^2 + 4 s^2 h, MLP 16 s h^2, head 2 s h V.

        The embedding multiplies nothing; its additions (s h) stand in for its cost. Backward costs twice as much in
        every layer, so it changes no cut.
        """
        model, s, h = self.model, self.model.seq, self.model.hidden
        attention = 2 * s * h * (self._qkv + h) + self.core_flops()
        mlp = 2 * s * h * self.ffn * (3 if model.activation == "swiglu" else 2)
        return (s * h, *([attention, mlp] * model.layers), 2 * s * h * model.vocab)

    def matrices(self) -> list[dict[str, tuple[int, ...]]]:
        model, h = self.model, self.model.hidden
        wide = 2 * self.ffn if model.activation == "swiglu" else self.ffn
        norm: dict[str, tuple[int, ...]] = {"norm.weight": (h,)}
        if model.norm == "layernorm":
            norm["norm.bias"] = (h,)
        positions: dict[str, tuple[int, ...]] = {"position.weight": (model.seq, h)}
        embed = {"token.weight": (model.vocab, h), **(positions if model.positions == "learned" else {})}
        attention = {**norm, **self._linear("qkv", self._qkv, h), **self._linear("proj", h, h)}
        mlp = {**norm, **self._linear("fc1", wide, h), **self._linear("fc2", h, self.ffn)}
        return [embed, *([attention, mlp] * model.layers), {**norm, "output.weight": (model.vocab, h)}]

    def core_flops(self) -> int:
        """Of the scores and of what they weigh: 4 s^2 h."""
        return 4 * self.model.seq**2 * self.model.hidden

    def shared(self) -> int:
        return self.model.vocab * self.model.hidden if self.model.tied else 0

    def costs(self, spec: RunSpec) -> list[UnitCost]:
        whole, mlp = self._attention(spec), self._mlp(spec)
        blocks = [whole, mlp] * self.model.layers
        if spec.parallel.recompute == "selective":
            core, chosen = self._core(spec), recomputed(spec.parallel, self.units())
            rebuilt = replace(whole, inner=whole.inner - core, core=self._again(spec), aside=0)
            blocks[::2] = [rebuilt if f"block.{i}" in chosen else whole for i in range(self.model.layers)]
        return [self._embed(spec), *blocks, self._head(spec)]

    @property
    def _qkv(self) -> int:
        """Rows of the matrix that makes queries, keys and values."""
        return (self.model.heads + 2 * self.kv_heads) * self.head_dim

    def _norm(self, spec: RunSpec) -> int:
        """Elements that a norm keeps."""
        numbers = 2 if self.model.norm == "layernorm" else 1
        return self._rows(spec) * (self.model.hidden + numbers * spec.fp32_elements)

    def _linear(self, name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        weight: dict[str, tuple[int, ...]] = {f"{name}.weight": (outputs, inputs)}
        return weight | ({f"{name}.bias": (outputs,)} if self.model.bias else {})

    def _parameters(self, spec: RunSpec, unit: int) -> tuple[int, ...]:
        """Elements of each parameter of layer `unit` that a rank holds."""
        tp, how = spec.parallel.tp, spec.parallel.tensor_split
        return tuple(
            prod(shape) // (1 if split_dim(f".{name}", how) is None else tp)
            for name, shape in self.matrices()[unit].items()
        )

    def _embed(self, spec: RunSpec) -> UnitCost:
        model = self.model
        table, out = model.vocab * model.hidden // spec.parallel.tp, self._bsh(spec)
        return UnitCost(self._parameters(spec, 0), 0, 0, out + table)

    def _attention(self, spec: RunSpec) -> UnitCost:
        model, t, bsh, qkv = self.model, spec.parallel.tp, self._bsh(spec), self._in_rows(spec)
        in_core = bsh + self._in_core_backward(spec)
        gathered = gathers_columns(spec)
        return UnitCost(
            parameters=self._parameters(spec, 1),
            boundary=self._entering(spec),
            inner=self._norm(spec) + qkv + (bsh if gathered else bsh // t) + self._core(spec),
            passing=max(in_core - bsh, self._in_second(spec, model.hidden)) if gathered else in_core,
            gathered=2 * self._foreign(spec),
            let_go=bsh if gathered else 0,
            aside=self._core(spec),
        )

    def _in_core_backward(self, spec: RunSpec) -> int:
        """Passes in the core's backward. Fused: gradients of its mix and of what it is made of. Plain: those of the
        probabilities and of what they were made of, and of values, which are let go with the mix by then; where the
        core is made again, its mix and that one's gradient are held."""
        heads = self._bsh(spec) // spec.parallel.tp
        if fused_attention(spec):
            return self._in_rows(spec) + heads
        return 2 * self._matrix(spec) + (heads if spec.parallel.recompute == "selective" else -heads)

    def _in_second(self, spec: RunSpec, inputs: int) -> int:
        """Passes in the backward of a gathering linear layer beside the gradient of its output: its own columns of
        that, a part of the gradient of all its `inputs`, and the sum of its own ones."""
        t, bsh = spec.parallel.tp, self._bsh(spec)
        made = spec.micro_batch_size * self.model.seq * inputs
        return bsh // t + made + made // t + _apart(spec, self.model.hidden * inputs // t) + self._masked(spec)

    def _masked(self, spec: RunSpec) -> int:
        """The gradient behind a dropout, beside the one before it, which goes round the layer."""
        return self._entering(spec) if self.model.dropout else 0

    def _core(self, spec: RunSpec) -> int:
        """What the core of attention keeps beyond queries, keys and values as they came, but the mix itself. The plain
        core lets go of those: it keeps the copies that its products are made of."""
        return self._again(spec) - (0 if fused_attention(spec) else self._in_rows(spec))

    def _again(self, spec: RunSpec) -> int:
        """What it makes of them: copies, the turned ones, probabilities or log-sum-exp."""
        heads, keys = self._bsh(spec) // spec.parallel.tp, self.kv_heads // spec.parallel.tp
        if not fused_attention(spec):
            return 3 * heads + self._matrix(spec)
        mixed = heads if gathers_columns(spec) else 0  # else it is the second layer's own input
        if self.model.positions == "rope":
            return heads + heads * self.kv_heads // self.model.heads + mixed + self._matrix(spec)
        gathered = heads if 1 < keys < self.model.heads // spec.parallel.tp else 0  # of one group they lie in a row
        return gathered + mixed + self._matrix(spec)

    def _in_rows(self, spec: RunSpec) -> int:
        """Queries, keys and values as the first linear layer makes them."""
        return spec.micro_batch_size * self.model.seq * self._qkv // spec.parallel.tp

    def _matrix(self, spec: RunSpec) -> int:
        """Probabilities, or in their place one log-sum-exp a query."""
        rows = spec.micro_batch_size * self.model.seq * self.model.heads // spec.parallel.tp
        return rows * (spec.fp32_elements if fused_attention(spec) else self.model.seq)

    def _mlp(self, spec: RunSpec) -> UnitCost:
        model, bsh = self.model, self._bsh(spec)
        h, rows, f = model.hidden, spec.micro_batch_size * model.seq, self.ffn // spec.parallel.tp
        wide = 2 * f if model.activation == "swiglu" else f
        kept, passing, gathered = 2 * rows * wide, bsh + rows * wide + _apart(spec, h * wide), gathers_columns(spec)
        if gathered:
            kept += rows * (self.ffn - f)
            passing = max(passing - rows * self.ffn, self._in_second(spec, self.ffn))
        else:
            passing += self._masked(spec)
        return UnitCost(
            parameters=self._parameters(spec, 2),
            boundary=self._entering(spec),
            inner=self._norm(spec) + kept,
            passing=passing,
            put_off=0 if gathered else rows * f,
            gathered=2 * self._foreign(spec),
            let_go=bsh - bsh // spec.parallel.tp if gathered else 0,
        )

    def _head(self, spec: RunSpec) -> UnitCost:
        model, t, bsh = self.model, spec.parallel.tp, self._bsh(spec)
        h, rows = model.hidden, spec.micro_batch_size * model.seq
        logits, matrix = rows * model.vocab // t, model.vocab * h // t
        return UnitCost(
            parameters=self._parameters(spec, -1),
            boundary=self._entering(spec),
            inner=self._norm(spec) + spec.fp32_elements * logits,
            passing=bsh + _apart(spec, matrix) + self._gathered(spec) + self._scattered(spec),
            gathered=self._foreign(spec),
            loss=_apart(spec, logits),
            ends=True,
        )

    def _rows(self, spec: RunSpec) -> int:
        """Positions of a micro-batch that norms and residual sums of one rank see."""
        return spec.micro_batch_size * self.model.seq // (spec.parallel.tp if spec.parallel.sequence else 1)

    def _entering(self, spec: RunSpec) -> int:
        return self._rows(spec) * self.model.hidden

    def _gathered(self, spec: RunSpec) -> int:
        """A layer's input, or the gradient of its output, where a rank has its rows alone and gathers the others."""
        return self._bsh(spec) if spec.parallel.sequence else 0

    def _scattered(self, spec: RunSpec) -> int:
        """What a rank gets of a gradient of which each has its rows."""
        return self._entering(spec) if spec.parallel.sequence else 0

    def _foreign(self, spec: RunSpec) -> int:
        """How much of that are other ranks' rows."""
        return self._bsh(spec) - self._entering(spec)

    def _bsh(self, spec: RunSpec) -> int:
        return spec.micro_batch_size * self.model.seq * self.model.hidden
