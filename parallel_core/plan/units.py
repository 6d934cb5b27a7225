"""What one layer of the GPT costs on one rank: parameters, kept activations, passing tensors. In elements, not bytes.

The activations are those of Korthikanti et al. 2022, section 4.1, for this model: no dropout, so no masks; fused
attention keeps a log-sum-exp for each query instead of the s x s matrix; a tensor group of t shares the heads and the
MLP's columns but not the norms (no sequence parallelism). b samples, s positions, width h, a heads, V tokens:

    attention   input bsh, norm bsh + 2bs, queries, keys and values 3bsh/t, their mix bsh/t, log-sum-exp abs/t
    MLP         input bsh, norm bsh + 2bs, before and behind GELU 4bsh/t each
    head        input bsh, norm bsh + 2bs, log-probabilities bsV/t
"""

from __future__ import annotations

from dataclasses import dataclass

from parallel_core.spec import ModelSpec, RunSpec

ALIGN = 64
"""Elements that the place of a parameter is rounded up to in the flat buffers of the engine."""


@dataclass(frozen=True, slots=True)
class UnitCost:
    """Elements of one layer on one rank, for one micro-batch."""

    parameters: tuple[int, ...]
    """Sizes of its parameters."""
    boundary: int
    """Its input, kept even where the layer is recomputed."""
    inner: int
    """What else autograd keeps for its backward."""
    passing: int
    """Most that its backward needs on top: gradients of activations, and one weight gradient before it is added."""

    @property
    def flat(self) -> int:
        """Elements that its parameters take in a flat buffer."""
        return sum(aligned(size) for size in self.parameters)


def aligned(size: int) -> int:
    """`size` rounded up to a multiple of ALIGN."""
    return -(-size // ALIGN) * ALIGN


def unit_costs(spec: RunSpec) -> list[UnitCost]:
    """Costs of each of `ModelSpec.units`; a tied head lists the matrix, too (`plan.peak` knows if it is shared)."""
    block = [_attention(spec), _mlp(spec)]
    return [_embed(spec), *(block * spec.model.layers), _head(spec)]


def parameter_count(model: ModelSpec) -> int:
    """Parameters of the whole model; a tied matrix counts once."""
    total = sum(sum(unit.parameters) for unit in unit_costs(RunSpec(model=model)))
    return total - (model.vocab * model.hidden if model.tied else 0)


def boundary_elements(spec: RunSpec) -> int:
    """Elements of the activation between two layers, for one micro-batch: bsh."""
    return spec.micro_batch_size * spec.model.seq * spec.model.hidden


def fused_attention(spec: RunSpec) -> bool:
    """Whether attention runs without keeping its s x s matrix: PyTorch has no fused fp64 kernel on CUDA."""
    return spec.train.device == "cpu" or spec.train.precision == "fp32"


def _embed(spec: RunSpec) -> UnitCost:
    model = spec.model
    table = model.vocab * model.hidden // spec.parallel.tp
    return UnitCost((table, model.seq * model.hidden), 0, 0, boundary_elements(spec) + table)


def _attention(spec: RunSpec) -> UnitCost:
    model, t, bsh = spec.model, spec.parallel.tp, boundary_elements(spec)
    h, rows = model.hidden, spec.micro_batch_size * model.seq
    matrix = rows * model.heads // t * (1 if fused_attention(spec) else model.seq)
    return UnitCost(
        parameters=(h, h, 3 * h * h // t, 3 * h // t, h * h // t, h),
        boundary=bsh,
        inner=bsh + 2 * rows + 4 * bsh // t + matrix,
        passing=bsh + 4 * bsh // t + (0 if fused_attention(spec) else 2 * matrix),
    )


def _mlp(spec: RunSpec) -> UnitCost:
    model, t, bsh = spec.model, spec.parallel.tp, boundary_elements(spec)
    h, rows = model.hidden, spec.micro_batch_size * model.seq
    return UnitCost(
        parameters=(h, h, 4 * h * h // t, 4 * h // t, 4 * h * h // t, h),
        boundary=bsh,
        inner=bsh + 2 * rows + 8 * bsh // t,
        passing=bsh + 4 * bsh // t + 4 * h * h // t,
    )


def _head(spec: RunSpec) -> UnitCost:
    model, t, bsh = spec.model, spec.parallel.tp, boundary_elements(spec)
    h, rows = model.hidden, spec.micro_batch_size * model.seq
    logits, matrix = rows * model.vocab // t, model.vocab * h // t
    return UnitCost(
        parameters=(h, h, matrix),
        boundary=bsh,
        inner=bsh + 2 * rows + logits,
        passing=max(logits * (2 if t == 1 else 1), bsh + matrix),
    )
