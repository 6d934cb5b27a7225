"""Layers, parameters and parameter shards held by one rank."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_core.layout import Layout
from parallel_core.outline import outline_of
from parallel_core.outline.splits import TensorSplit, split_dim
from parallel_core.plan import fully_sharded
from parallel_core.plan.units import unit_costs
from parallel_core.spec import RunSpec


@dataclass(frozen=True, slots=True)
class Matrix:
    """A parameter with its full `shape`; the rank holds part `part` of `parts` along `dim` (None: all of it)."""

    name: str
    shape: tuple[int, ...]
    dim: int | None
    part: int
    parts: int


@dataclass(frozen=True, slots=True)
class Held:
    """A layer on a rank, with its stage. `matrices` is empty where only sizes are known."""

    stage: int
    unit: str
    matrices: tuple[Matrix, ...]


def held(spec: RunSpec, rank: int) -> list[Held]:
    """Layers of `rank` in order. Raises ValueError if the run has no such rank."""
    layout, outline = Layout.of(spec), outline_of(spec.model)
    place, _, tensor = layout.coords(rank)
    units, shapes = outline.units(), outline.matrices()
    width, how = layout.widths[place], spec.parallel.tensor_split
    return [
        Held(stage, units[i], tuple(_matrix(n, s, tensor, width, how) for n, s in shapes[i].items()) if shapes else ())
        for stage in layout.stages_of(place)
        for i in layout.stage_units[stage]
    ]


def held_parameters(spec: RunSpec, rank: int) -> int:
    """Parameters that `rank` keeps between steps, without padding and further versions: those of its layers, of which
    ZeRO-3, but not ZeRO-1 and 2, leaves a replica its part. A matrix tied within the rank counts once."""
    layout, costs = Layout.of(spec), unit_costs(spec)
    place, replica, _ = layout.coords(rank)
    if fully_sharded.by_torch(spec):
        return fully_sharded.owned(spec, costs, replica)
    units = [unit for stage in layout.stages_of(place) for unit in layout.stage_units[stage]]
    total = sum(sum(costs[unit].parameters) for unit in units)
    if spec.model.tied and {0, len(costs) - 1} <= set(units):
        total -= outline_of(spec.model).shared() // layout.widths[place]
    return total // (spec.parallel.dp if spec.parallel.zero > 2 else 1)


def _matrix(name: str, shape: tuple[int, ...], tensor: int, tp: int, how: TensorSplit) -> Matrix:
    dim = split_dim(f".{name}", how) if tp > 1 else None
    return Matrix(name, shape, dim, tensor if dim is not None else 0, tp if dim is not None else 1)
