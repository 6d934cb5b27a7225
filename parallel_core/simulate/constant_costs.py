"""What an operation costs however small its micro-batch is: launching kernels, and reading and writing weights.

A layer launches a few kernels for each of its tensors of parameters (products, sums, norms), and goes once through its
weights; convolutions and LSTMs take longer for both (`Outline.constant_ns`). Measured on a core: forwards of half of a
GPT 4 x 64 with 32 tokens (26 tensors) took 1.87, 1.14, 0.81 and 0.69 ms with 8, 4, 2 and 1 samples, those of a GPT
4 x 128 with 128 tokens 15.0, 7.7 and 4.1 ms: 17 to 19 us a tensor, and the rest in proportion. Without these costs two
stages were to be 1.2 times as fast with 8 micro-batches as with 2, and were 1.3 (GPT 4 x 64, VGG-16, GNMT) and 1.9
times as slow (ResNet-50; digits, 32 samples); with them both are within a fifth.
"""

from __future__ import annotations

from parallel_core.layout import Layout
from parallel_core.outline import outline_of
from parallel_core.plan.units import unit_costs
from parallel_core.schedule.ir import Kind
from parallel_core.simulate.measured import Cost
from parallel_core.spec import RunSpec

FORWARDS = {Kind.F: 1.0, Kind.BW: 1.4}
"""Kind -> the number of forwards that cost as much: a whole backward 1.0 (GNMT), 1.4 (GPT) and 1.6 times (VGG-16)."""
WEIGHTS = 0.4
"""Of these, those of W where the backward of all layers is divided: it launches a product for each matrix, B all else.
Of one sample B of a GPT 4 x 64 took 1.74 ms and W 0.55, beside 0.35 and 0.20 for each further one."""
MOST = 0.75
"""Largest part of an operation that is taken to be constant: how much it is of a short one is not known well."""


def constant_costs(spec: RunSpec) -> list[float]:
    """Nanoseconds of a forward of each stage that do not depend on the samples; 0 on GPUs, which get their kernels
    ahead of time."""
    layout = Layout.of(spec)
    if spec.train.device != "cpu":
        return [0.0] * layout.stages
    tensor, weight = outline_of(spec.model).constant_ns
    each = [tensor * len(cost.parameters) + weight * sum(cost.parameters) for cost in unit_costs(spec)]
    return [sum(each[unit] for unit in own) for own in layout.stage_units]


def moves_as_much(spec: RunSpec) -> bool:
    """Whether the collectives inside its operations are those of parameters, gradients or batch norms, which are as
    large however many samples there are; else they are those of tensor ranks."""
    split = spec.parallel
    return max(split.copies) > 1 and (split.zero > 1 or outline_of(spec.model).batch_norm)


def resized(cost: Cost, share: float, constant: float, kind: Kind, moved: float, divided: float = 1.0) -> Cost:
    """An operation of this kind with `share` times the samples, where `constant` ns of a forward stay, and with `moved`
    times the bytes in collectives. `divided`: how much of a backward leaves its weight gradients to W."""
    return Cost(
        _resized(cost.work, share, constant * _forwards(kind, divided)),
        cost.moved * moved,
        _resized(cost.again, share, constant),
        cost.again_moved * moved,
    )


def _forwards(kind: Kind, divided: float) -> float:
    """The number of forwards that cost as much as an operation of this kind."""
    later = WEIGHTS * divided
    return {Kind.B: FORWARDS[Kind.BW] - later, Kind.W: later, **FORWARDS}[kind]


def _resized(took: float, share: float, constant: float) -> float:
    stays = min(constant, MOST * took)
    return stays + (took - stays) * share
