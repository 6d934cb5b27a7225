"""What each layer of a run's model costs on one rank. In elements, not bytes; the sizes are the model's `outline`."""

from __future__ import annotations

from math import prod

from parallel_core.layout import Layout
from parallel_core.outline import UnitCost, aligned, outline_of
from parallel_core.spec import ModelSpec, RunSpec

__all__ = ["UnitCost", "aligned", "boundary_elements", "boundary_shapes", "parameter_count", "unit_costs"]


def unit_costs(spec: RunSpec) -> list[UnitCost]:
    """Costs of each of `ModelSpec.units`, on a rank that holds it; a tied head lists the matrix, too (`plan.peak` knows
    if it is shared)."""
    outline = outline_of(spec.model)
    if spec.parallel.widths is None:
        return outline.costs(spec)
    of_width = {width: outline.costs(spec.with_width(width)) for width in set(spec.parallel.widths)}
    return [of_width[width][unit] for unit, width in enumerate(Layout.of(spec).unit_widths())]


def parameter_count(model: ModelSpec) -> int:
    """Parameters of the whole model; a tied matrix counts once."""
    spec = RunSpec.model_validate({"model": model.model_dump()})
    return sum(sum(unit.parameters) for unit in unit_costs(spec)) - outline_of(model).shared()


def boundary_elements(spec: RunSpec) -> list[int]:
    """For each layer the elements of what enters it on one rank, for one micro-batch; 0 for the first."""
    return [prod(shape) if shape else 0 for shape in boundary_shapes(spec)]


def boundary_shapes(spec: RunSpec) -> list[tuple[int, ...]]:
    """Shapes of the same; () for the first. Sequence parallelism: a rank's rows, (1, samples x seq / tp, hidden)."""
    samples, shapes = spec.micro_batch_size, outline_of(spec.model).boundaries()
    if spec.parallel.sequence:
        return [(1, samples * shape[0] // spec.parallel.tp, *shape[1:]) if shape else () for shape in shapes]
    return [(samples, *shape) if shape else () for shape in shapes]
