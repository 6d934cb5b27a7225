"""What an operation costs however small its micro-batch is: launching kernels, and reading and writing weights.

A layer launches a few kernels for each of its tensors of parameters (products, sums, norms). It goes through its
weights in a forward, and twice in a backward: to read them, and to add to their gradients. `Outline.constant_ns` says
how long both take a core, by kind of model: what operations of 2, 4 and 8 micro-batches on two stages have in common,
which took turns in the same ranks (1F1B). With 16, 8 and 4 samples the backward of half of a VGG-16 took 9.8, 6.8 and
5.2 ms, with 8, 4 and 2 the forward of half of a GPT 4 x 64 with 32 tokens (26 tensors) 1.76, 1.18 and 0.86 ms. A
profile would say more: between its passes weights leave the caches, where consecutive micro-batches find them. Without
these costs two stages were to be 1.2 times as fast with 8 micro-batches as with 2, and were 1.3 (GPT 4 x 64, VGG-16,
GNMT) and 1.9 times as slow (ResNet-50; digits, 32 samples).
"""

from __future__ import annotations

from typing import NamedTuple

from parallel_core.layout import Layout
from parallel_core.outline import outline_of
from parallel_core.plan.units import unit_costs
from parallel_core.schedule.ir import Kind
from parallel_core.simulate.measured import Cost
from parallel_core.spec import RunSpec

LATER = 0.5
"""Of what a backward takes to go through its weights, the part of W where the backward of all layers is divided: B
reads them, W adds to their gradients. What is for each tensor is in B, which launches all but a product for each."""
COME_NS, HANDLED_NS = 150_000.0, 75_000.0
"""Of a message between CPU ranks until it has come, and of its handling by either of them, however small. With 128, 64
and 32 KiB to a message of a GPT 4 x 64 they took 373, 247 and 233 us, and 164, 133 and 135; with 64, 32 and 16 KiB of
an MLP 217, 176 and 167 us, and 86, 91 and 81."""
MOST = 0.85
"""Largest part of an operation that is taken to be constant: how much it is of a short one is not known well."""


class Constant(NamedTuple):
    """Nanoseconds of the operations of one stage that do not depend on the samples: of a forward, of a whole backward,
    and of the latter those of W where the backward of all layers is divided; and of its messages until they have come,
    and of their handling."""

    forward: float = 0.0
    backward: float = 0.0
    later: float = 0.0
    come: float = 0.0
    handled: float = 0.0

    def of(self, kind: Kind, divided: float = 1.0) -> float:
        """Those of an operation of this kind. `divided`: how much of a backward leaves its weight gradients to W."""
        later = self.later * divided
        own = {Kind.F: self.forward, Kind.BW: self.backward, Kind.B: self.backward - later, Kind.W: later}
        return own[kind]


def constant_costs(spec: RunSpec) -> list[Constant]:
    """The constant part of each stage's operations; 0 on GPUs, which get their kernels ahead of time."""
    layout = Layout.of(spec)
    if spec.train.device != "cpu":
        return [Constant()] * layout.stages
    (tensor, weight), (back_tensor, back_weight) = outline_of(spec.model).constant_ns
    costs, found = unit_costs(spec), []
    for own in layout.stage_units:
        tensors = sum(len(costs[unit].parameters) for unit in own)
        weights = sum(sum(costs[unit].parameters) for unit in own)
        read = back_weight * weights
        passes = tensor * tensors + weight * weights, back_tensor * tensors + read, LATER * read
        found.append(Constant(*passes, COME_NS, HANDLED_NS))
    return found


def moves_as_much(spec: RunSpec) -> bool:
    """Whether the collectives inside its operations are those of parameters, gradients or batch norms, which are as
    large however many samples there are; else they are those of tensor ranks."""
    split = spec.parallel
    return max(split.copies) > 1 and (split.zero > 1 or outline_of(spec.model).batch_norm)


def resized(cost: Cost, share: float, constant: Constant, kind: Kind, moved: float, divided: float = 1.0) -> Cost:
    """An operation of this kind with `share` times the samples, of which `constant` stays, and with `moved` times the
    bytes in collectives. `divided`: as in `Constant.of`."""
    return Cost(
        resized_part(cost.work, share, constant.of(kind, divided)),
        cost.moved * moved,
        resized_part(cost.again, share, constant.forward),
        cost.again_moved * moved,
    )


def resized_part(took: float, share: float, constant: float) -> float:
    """What `took` so long with `share` times the samples or bytes, where `constant` stays."""
    stays = min(constant, MOST * took)
    return stays + (took - stays) * share
