"""What a rank holds of parameters and gradients where torch's `fully_shard` cuts them (`engine.fully_sharded`).

A parameter is cut by itself, by rows: each replica has room for as many as the first one owns, and the last ones own
fewer or none. Gathers and sums are padded alike. In a layer's backward its parameters are whole, and those of the layer
before it, the next one, are being gathered. Its gradients are there as autograd makes them, one linear layer after the
other, in the number type of the layer; those of the layer behind it wait in their reduce-scatter in fp32, until the
layer is through. Then they are copied, summed, on a CPU in a copy of all, and what comes out is added.

What is gathered is copied out; in a forward that holds the layer before's, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from parallel_core.outline import UnitCost, block_of, outline_of
from parallel_core.outline.splits import split_dim
from parallel_core.plan.grad_buckets import shards_of
from parallel_core.plan.zero_buckets import Turn, Whole
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
    units, wide, turns = range(len(costs)), spec.fp32_elements, _turns(spec, costs)
    behind = [turns[unit].behind // wide for unit in units]
    return Whole(
        {unit: behind[unit] + sum(costs[unit].parameters) // wide for unit in units},
        0,
        {unit: turns[unit].params + turns[unit].ahead for unit in units},
        before={unit: behind[unit] + size // wide for unit, size in enumerate(_first(spec, costs))},
        turns=dict(enumerate(turns)),
    )


def _turns(spec: RunSpec, costs: Sequence[UnitCost]) -> list[Turn]:
    """Of every layer. Where blocks are recomputed torch ends what it has begun behind each of them."""
    shards, wide, names = shards_of(spec), spec.fp32_elements, spec.model.units()
    again, copies = spec.parallel.recompute == "full", spec.train.device == "cpu"  # gloo sums a copy
    sizes = [
        shards * sum(_most(spec, *parameter) for parameter in _parameters(spec, costs, i)) for i in range(len(costs))
    ]

    def turn(i: int, size: int) -> Turn:
        earlier, last = (sizes[i - 1] if i else 0), i == len(sizes) - 1
        apart = last or (again and (block_of(names[i]) is None or block_of(names[i]) != block_of(names[i + 1])))
        parts = (sum(costs[i].parameters) + wide * size, 0), (wide * (size + size // shards), copies * wide * size)
        behind = 0 if apart else wide * sizes[i + 1]
        return Turn(size, earlier, 0 if again else earlier, behind, max(parts, key=sum), last)

    return [turn(i, size) for i, size in enumerate(sizes)]


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
    """(rows, elements of each) of the parameters of a layer on a rank."""
    outline, split = outline_of(spec.model), spec.parallel
    names = [*outline.matrices()[unit]] if outline.matrices() else ["."] * len(costs[unit].parameters)
    for name, rows, size in zip(names, outline.rows()[unit], costs[unit].parameters, strict=True):
        own = rows // (split.tp if split_dim(f".{name}", split.tensor_split) == 0 else 1)
        yield own, size // own


def _most(spec: RunSpec, rows: int, width: int) -> int:
    """Elements of a parameter that the first replica owns."""
    return -(-rows // shards_of(spec)) * width
