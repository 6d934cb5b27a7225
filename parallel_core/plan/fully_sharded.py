"""What a rank holds of parameters and gradients where torch's `fully_shard` cuts them (`engine.fully_sharded`).

A parameter is cut by itself, so nothing is padded to a bucket. In a layer's backward its parameters are whole, and
those of the layer before it, the next one, are being gathered. Its gradients are there as autograd makes them, in the
number type of the layer; those of the layer behind it wait in their reduce-scatter in fp32, until the next one begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from parallel_core.outline import UnitCost
from parallel_core.plan.lean import Whole
from parallel_core.plan.places import shards_of
from parallel_core.spec import RunSpec


def by_torch(spec: RunSpec) -> bool:
    """Whether torch shards, not this engine."""
    return spec.parallel.zero_backend == "fully_shard"


def owned(spec: RunSpec, costs: Sequence[UnitCost]) -> int:
    """Elements of parameters that the first replica owns."""
    return sum(-(-size // shards_of(spec)) for unit in costs for size in unit.parameters)


def whole(spec: RunSpec, costs: Sequence[UnitCost]) -> Whole:
    """Elements at most, as `plan.lean` counts them: of gradients as wide as a sum, of parameters as a layer's."""
    sizes = [sum(unit.parameters) for unit in costs]
    ahead = [0, *sizes[:-1]] if spec.parallel.recompute != "full" else [0] * len(sizes)
    behind = [*sizes[1:], 0] if spec.parallel.recompute != "full" else [0] * len(sizes)
    grads = {u: behind[u] + size // spec.fp32_elements for u, size in enumerate(sizes)}
    params = {u: size + ahead[u] for u, size in enumerate(sizes)}
    return Whole(grads, 0, params, before=dict(enumerate(behind)))
