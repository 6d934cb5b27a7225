"""Sizes of a GPT: parameters, tensors between layers, and FLOPs of each layer. Their memory is in `gpt_costs`."""

from __future__ import annotations

from collections.abc import Collection
from math import gcd
from typing import TYPE_CHECKING

from parallel_core.outline.base import NO_WIDTHS, WITHOUT_GROUP, Outline
from parallel_core.outline.gpt_costs import GptCosts
from parallel_core.outline.unit_cost import UnitCost
from parallel_core.rules import MAX_VALUES_NAMED, Proposal, divisors, few, nearest, refusal, rule_error
from parallel_core.rules.stages import WIDTHS, dashed_text, each

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec

_ID_BYTES = 8


class GptOutline(Outline):
    """`embed, block.0.attn, block.0.mlp, ..., head`: 2 x layers + 2 layers."""

    name = "GPT"
    fields = (
        *("layers", "hidden", "heads", "kv_heads", "ffn", "seq", "vocab"),
        *("positions", "rope_base", "activation", "norm", "bias", "attention", "tied", "dropout"),
    )
    target = "tokens"
    corpora = ("stdlib", "blob", "tokens")

    @property
    def targets(self) -> int:
        return self.model.seq

    def sample_bytes(self, real: int) -> int:
        """Bytes of the inputs, and of the targets."""
        return 2 * _ID_BYTES * (self.model.seq + 1)

    @property
    def kv_heads(self) -> int:
        """Number of key-value heads."""
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
            raise rule_error(
                ("model.heads", "model.hidden"),
                f"heads={model.heads} does not divide hidden={model.hidden}; try {self._fitting_heads()}.",
            )
        if model.heads % self.kv_heads:
            raise rule_error(
                ("model.kv_heads", "model.heads"),
                f"kv_heads={self.kv_heads} does not divide heads={model.heads}; "
                f"try one of {few(divisors(model.heads), self.kv_heads)}.",
            )
        if model.positions != "rope" and model.rope_base != type(model).model_fields["rope_base"].default:
            raise rule_error(
                ("model.rope_base", "model.positions"),
                f"positions={model.positions} has no rope_base; use positions=rope, or leave rope_base at 10000.",
            )
        if model.positions == "rope" and self.head_dim % 2:
            raise rule_error(
                ("model.heads", "model.positions"),
                f"positions=rope turns pairs, and with heads={model.heads} a head has {self.head_dim} dimensions; try "
                f"{self._fitting_heads()}, or positions=learned.",
            )

    def _fitting_heads(self) -> str:
        """Returns the nearest numbers of heads that fit the other fields; where none does, the next larger `hidden`."""
        model, even = self.model, 2 if self.model.positions == "rope" else 1
        able = [d for d in divisors(model.hidden // even) if d <= 256 and d % (model.kv_heads or 1) == 0]
        if able and model.hidden % even == 0:
            return f"heads={few(able, model.heads)}"
        step = even * model.heads
        return f"hidden={-(-model.hidden // step) * step}"

    def check_tensor(self, tp: int, widths: tuple[int, ...] | None = None) -> None:
        model = self.model
        shared = {"heads": model.heads, "kv_heads": self.kv_heads, "vocab": model.vocab, "ffn": self.ffn}
        leaf = next((leaf for leaf, value in shared.items() if value % tp), None)
        if leaf is None:
            return
        other, why = f"model.{leaf}", f"does not divide {leaf}={shared[leaf]}"
        if widths:
            near = self._nearest_widths(widths)
            problem = f"widths={dashed_text(widths)} has {tp} tensor ranks in a stage, which {why}; use"
            proposals = (each(WIDTHS, near), NO_WIDTHS)
            raise refusal(("parallel.widths", other), problem, *proposals)
        fewer = Proposal("{}", "parallel.tp", nearest(divisors(shared[leaf]), tp), MAX_VALUES_NAMED)
        raise refusal(("parallel.tp", other), f"tp={tp} {why}; try", fewer, *WITHOUT_GROUP)

    def _nearest_widths(self, widths: tuple[int, ...]) -> tuple[int, ...]:
        able = self.tensor_widths()
        return tuple(nearest(able, width)[0] for width in widths)

    def tensor_widths(self) -> list[int]:
        """Tensor-parallel sizes that the model can be split over: they divide all that is shared out."""
        model = self.model
        return divisors(gcd(model.heads, self.kv_heads, model.vocab, self.ffn))

    def units(self) -> list[str]:
        blocks = (f"block.{i}.{part}" for i in range(self.model.layers) for part in ("attn", "mlp"))
        return ["embed", *blocks, "head"]

    def boundaries(self) -> list[tuple[int, ...]]:
        shape = (self.model.seq, self.model.hidden)
        return [(), *([shape] * (2 * self.model.layers + 1))]

    def flops(self) -> tuple[int, ...]:
        """As in Narayanan et al. 2021b (appendix, equation 2): attention 8 s h^2 + 4 s^2 h, MLP 16 s h^2, head 2 s h V.

        The embedding has no multiplications; its additions (s h) represent its cost. Backward costs twice as much in
        every layer, so it does not affect where to cut.
        """
        model, s, h = self.model, self.model.seq, self.model.hidden
        attention = 2 * s * h * (self.qkv_rows + h) + self.core_flops()
        mlp = 2 * s * h * self.ffn * (3 if model.activation == "swiglu" else 2)
        return (s * h, *([attention, mlp] * model.layers), 2 * s * h * model.vocab)

    def product_flops(self) -> tuple[int, ...]:
        return (0, *self.flops()[1:])

    def unread(self, unit: str) -> str:
        """An MLP ends with its second linear layer, and the residual sum needs no value for its backward."""
        return "fc2" if unit.endswith(".mlp") else ""

    def by_autograd(self, unit: str) -> int | None:
        return None if unit == "embed" else 2 if self.model.norm == "layernorm" else 1

    def again_flops(self) -> tuple[int, ...]:
        narrow = 2 * self.model.seq * self.model.hidden * self.ffn
        return tuple(
            flops - (narrow if self.unread(unit) else 0) for unit, flops in zip(self.units(), self.flops(), strict=True)
        )

    def matrices(self) -> list[dict[str, tuple[int, ...]]]:
        model, h = self.model, self.model.hidden
        wide = 2 * self.ffn if model.activation == "swiglu" else self.ffn
        norm: dict[str, tuple[int, ...]] = {"norm.weight": (h,)}
        if model.norm == "layernorm":
            norm["norm.bias"] = (h,)
        positions: dict[str, tuple[int, ...]] = {"position.weight": (model.seq, h)}
        embed = {"token.weight": (model.vocab, h), **(positions if model.positions == "learned" else {})}
        attention = {**norm, **self._linear("qkv", self.qkv_rows, h), **self._linear("proj", h, h)}
        mlp = {**norm, **self._linear("fc1", wide, h), **self._linear("fc2", h, self.ffn)}
        return [embed, *([attention, mlp] * model.layers), {**norm, "output.weight": (model.vocab, h)}]

    def core_flops(self) -> int:
        """FLOPs of the attention scores and of the weighted sum of values: 4 s^2 h."""
        return 4 * self.model.seq**2 * self.model.hidden

    def standing(self, units: Collection[str], real: int) -> int:
        """Bytes of the causal mask and of the RoPE tables, which all layers share."""
        if not any(unit.endswith(".attn") for unit in units):
            return 0
        mask = self.model.seq**2 if self.model.attention == "plain" else 0
        return mask + (real * self.model.seq * self.head_dim if self.model.positions == "rope" else 0)

    def shared(self) -> int:
        return self.model.vocab * self.model.hidden if self.model.tied else 0

    def costs(self, spec: RunSpec) -> list[UnitCost]:
        return GptCosts(self, spec).units()

    @property
    def qkv_rows(self) -> int:
        """Rows of the matrix that computes queries, keys and values."""
        return (self.model.heads + 2 * self.kv_heads) * self.head_dim

    def _linear(self, name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        weight: dict[str, tuple[int, ...]] = {f"{name}.weight": (outputs, inputs)}
        return weight | ({f"{name}.bias": (outputs,)} if self.model.bias else {})
