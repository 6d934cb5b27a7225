"""Costs of each layer of a run's model on one rank, in elements, not bytes; sizes come from the model's `outline`."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from parallel_core.layout import Layout
from parallel_core.outline import UnitCost, outline_of
from parallel_core.spec import ModelSpec, RunSpec


def unit_costs(spec: RunSpec) -> list[UnitCost]:
    """Costs of each of `ModelSpec.units` on a rank that holds it. A tied head lists the matrix as well; `plan.peak`
    removes it where it is shared."""
    outline = outline_of(spec.model)
    if spec.parallel.widths is None:
        return outline.costs(spec)
    of_width = {width: outline.costs(spec.with_width(width)) for width in set(spec.parallel.widths)}
    return [of_width[width][unit] for unit, width in enumerate(Layout.of(spec).unit_widths())]


@lru_cache(maxsize=1024)
def parameter_count(model: ModelSpec) -> int:
    """Parameters of the whole model; a tied matrix counts once."""
    spec = RunSpec.model_validate({"model": model.model_dump(), "train": {"corpus": outline_of(model).profiled}})
    return sum(sum(unit.parameters) for unit in unit_costs(spec)) - outline_of(model).shared()


def boundary_elements(spec: RunSpec) -> list[int]:
    """Elements of each layer's input on one rank for one micro-batch; 0 for the first layer."""
    return [prod(shape) if shape else 0 for shape in boundary_shapes(spec)]


def boundary_shapes(spec: RunSpec) -> list[tuple[int, ...]]:
    """Shape of each layer's input, as in `boundary_elements`; () for the first. With sequence parallelism a rank's
    rows: (1, samples x seq / tp, hidden)."""
    samples, shapes = spec.micro_batch_size, outline_of(spec.model).boundaries()
    if spec.parallel.sequence:
        return [(1, samples * shape[0] // spec.parallel.tp, *shape[1:]) if shape else () for shape in shapes]
    return [(samples, *shape) if shape else () for shape in shapes]
