"""What a rank holds of parameters and gradients where torch's `fully_shard` cuts them (`engine.fully_sharded`).

A parameter is cut by itself, by rows: each replica has room for as many as the first one owns, and the last ones own
fewer or none. Gathers and sums are padded alike. In a layer's backward its parameters are whole, and those of the layer
before it, the next one, are being gathered. Its gradients are there as autograd makes them, one linear layer after the
other, in the number type of the layer; those of the layer behind it wait in their reduce-scatter in fp32, until the
next one begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from parallel_core.outline import UnitCost, outline_of
from parallel_core.outline.splits import split_dim
from parallel_core.plan.lean import Whole
from parallel_core.plan.places import shards_of
from parallel_core.spec import RunSpec

_LAST = ("proj.", "fc2.", "output.")
"""Linear layers that are the last of their layer: their gradients come first."""


def by_torch(spec: RunSpec) -> bool:
    """Whether torch shards, not this engine."""
    return spec.parallel.zero_backend == "fully_shard"


def room(spec: RunSpec, costs: Sequence[UnitCost]) -> int:
    """Elements of parameters that every replica has room for."""
    return sum(_most(spec, *parameter) for unit in range(len(costs)) for parameter in _parameters(spec, costs, unit))


def owned(spec: RunSpec, costs: Sequence[UnitCost], replica: int) -> int:
    """Elements of parameters that a replica owns: those of torch.chunk."""
    shards, out = shards_of(spec), 0
    for unit in range(len(costs)):
        for rows, width in _parameters(spec, costs, unit):
            most = -(-rows // shards)
            out += (min(rows, (replica + 1) * most) - min(rows, replica * most)) * width
    return out


def whole(spec: RunSpec, costs: Sequence[UnitCost]) -> Whole:
    """Elements at most, as `plan.lean` counts them: of gradients as wide as a sum, of parameters as a layer's."""
    shards, named = shards_of(spec), [[*_parameters(spec, costs, unit)] for unit in range(len(costs))]
    sizes = [shards * sum(_most(spec, *parameter) for parameter in parameters) for parameters in named]
    ahead = [0, *sizes[:-1]] if spec.parallel.recompute != "full" else [0] * len(sizes)
    behind = [*sizes[1:], 0] if spec.parallel.recompute != "full" else [0] * len(sizes)
    grads = {u: behind[u] + sum(unit.parameters) // spec.fp32_elements for u, unit in enumerate(costs)}
    params = {u: size + ahead[u] for u, size in enumerate(sizes)}
    before = {u: behind[u] + size // spec.fp32_elements for u, size in enumerate(_first(spec, costs))}
    return Whole(grads, 0, params, before=before)


def let_go_late(spec: RunSpec, costs: Sequence[UnitCost]) -> Sequence[UnitCost]:
    """With what layers have let go of when the last of their gradients comes, where these come one after the other."""
    firsts = _first(spec, costs)
    return [replace(unit, late=unit.inner) if first else unit for unit, first in zip(costs, firsts, strict=True)]


def _first(spec: RunSpec, costs: Sequence[UnitCost]) -> list[int]:
    """Of each layer the elements of gradients that are there when its backward needs most: those of its last linear
    layer; 0 where it has none, or where names are not known."""
    return [
        sum(size for name, size in zip(names, unit.parameters, strict=False) if name.startswith(_LAST))
        for names, unit in zip(outline_of(spec.model).matrices() or [{}] * len(costs), costs, strict=True)
    ]


def _parameters(spec: RunSpec, costs: Sequence[UnitCost], unit: int) -> Iterator[tuple[int, int]]:
    """(rows, elements of each) of the parameters of a layer on a rank; single elements where shapes are not known."""
    shapes = outline_of(spec.model).matrices()
    if not shapes:
        yield from ((size, 1) for size in costs[unit].parameters)
        return
    for (name, shape), size in zip(shapes[unit].items(), costs[unit].parameters, strict=True):
        cut = split_dim(f".{name}", spec.parallel.tensor_split) == 0
        rows = shape[0] // (spec.parallel.tp if cut else 1)
        yield rows, size // rows


def _most(spec: RunSpec, rows: int, width: int) -> int:
    """Elements of a parameter that the first replica owns."""
    return -(-rows // shards_of(spec)) * width
