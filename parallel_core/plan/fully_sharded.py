"""Parameters and gradients of a rank where torch's `fully_shard` shards them (`engine.fully_sharded`).

Each parameter is sharded separately, by rows: every replica reserves as much as the first one owns, and the last ones
own fewer rows or none. All-gathers and reduce-scatters are padded in the same way. In a layer's backward its parameters
are unsharded, and those of the previous layer, whose backward comes next, are being gathered. Autograd creates its
gradients one linear layer after the other, in the layer's number type; the gradients of the following layer stay in
their fp32 reduce-scatter until this layer's backward is done. Then the gradients are copied and reduced (on a CPU in
one more copy), and the result is accumulated.

Gathered parameters are copied out of the gather's buffer; in a forward the previous layer's buffer is still held then.
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
"""Linear layers that come last in their layer: their gradients are computed first."""


def by_torch(spec: RunSpec) -> bool:
    """Whether torch shards instead of this engine."""
    return spec.parallel.zero_backend == "fully_shard"


def room(spec: RunSpec, costs: Sequence[UnitCost]) -> int:
    """Elements of parameters for which every replica reserves memory."""
    return sum(_most(spec, *parameter) for unit in range(len(costs)) for parameter in _parameters(spec, costs, unit))


def owned(spec: RunSpec, costs: Sequence[UnitCost], replica: int) -> int:
    """Elements of parameters that a replica owns: its part of torch.chunk."""
    shards, out = shards_of(spec), 0
    for unit in range(len(costs)):
        for rows, width in _parameters(spec, costs, unit):
            out += chunk(rows, replica, shards) * width
    return out


def chunk(rows: int, replica: int, shards: int) -> int:
    """Rows of a parameter in a replica's part of torch.chunk."""
    most = -(-rows // shards)
    return min(rows, (replica + 1) * most) - min(rows, replica * most)


def unsharded(spec: RunSpec, costs: Sequence[UnitCost]) -> list[int]:
    """Elements of each layer as it is gathered, and as its gradients are reduced: with the padding."""
    return [
        shards_of(spec) * sum(_most(spec, *parameter) for parameter in _parameters(spec, costs, unit))
        for unit in range(len(costs))
    ]


def whole(spec: RunSpec, costs: Sequence[UnitCost]) -> Whole:
    """Most unsharded elements, as in `plan.zero_buckets`: gradients as wide as sums, parameters as activations."""
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
    """Turn of every layer. Where blocks are recomputed, torch ends its outstanding operations after each block."""
    shards, wide, names, sizes = shards_of(spec), spec.fp32_elements, spec.model.units(), unsharded(spec, costs)
    again, copies = spec.parallel.recompute == "full", spec.train.device == "cpu"  # gloo reduces a copy

    def turn(i: int, size: int) -> Turn:
        earlier, last = (sizes[i - 1] if i else 0), i == len(sizes) - 1
        apart = last or (again and (block_of(names[i]) is None or block_of(names[i]) != block_of(names[i + 1])))
        parts = (sum(costs[i].parameters) + wide * size, 0), (wide * (size + size // shards), copies * wide * size)
        behind = 0 if apart else wide * sizes[i + 1]
        return Turn(size, earlier, 0 if again else earlier, behind, max(parts, key=sum), last)

    return [turn(i, size) for i, size in enumerate(sizes)]


def let_go_late(spec: RunSpec, costs: Sequence[UnitCost]) -> Sequence[UnitCost]:
    """Costs with `late` (elements freed by the last gradient) for layers whose gradients are computed one by one."""
    firsts = _first(spec, costs)
    return [replace(unit, late=unit.inner) if first else unit for unit, first in zip(costs, firsts, strict=True)]


def _first(spec: RunSpec, costs: Sequence[UnitCost]) -> list[int]:
    """Elements of gradients of each layer that exist when its backward needs most: those of its last linear layer; 0
    where it has none or parameter names are not known."""
    return [
        sum(size for name, size in zip(names, unit.parameters, strict=False) if name.startswith(_LAST))
        for names, unit in zip(outline_of(spec.model).matrices() or [{}] * len(costs), costs, strict=True)
    ]


def _parameters(spec: RunSpec, costs: Sequence[UnitCost], unit: int) -> Iterator[tuple[int, int]]:
    """(rows, elements of a row) of each parameter of a layer on a rank."""
    outline, split = outline_of(spec.model), spec.parallel
    names = [*outline.matrices()[unit]] if outline.matrices() else ["."] * len(costs[unit].parameters)
    for name, rows, size in zip(names, outline.rows()[unit], costs[unit].parameters, strict=True):
        own = rows // (split.tp if split_dim(f".{name}", split.tensor_split) == 0 else 1)
        yield own, size // own


def _most(spec: RunSpec, rows: int, width: int) -> int:
    """Elements of a parameter that the first replica owns."""
    return -(-rows // shards_of(spec)) * width
