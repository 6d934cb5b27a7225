"""What each layer of a run's model costs on one rank. In elements, not bytes; the sizes are the model's `outline`."""

from __future__ import annotations

from parallel_core.outline import UnitCost, aligned, outline_of
from parallel_core.spec import ModelSpec, RunSpec

__all__ = ["UnitCost", "aligned", "boundary_elements", "parameter_count", "unit_costs"]


def unit_costs(spec: RunSpec) -> list[UnitCost]:
    """Costs of each of `ModelSpec.units`; a tied head lists the matrix, too (`plan.peak` knows if it is shared)."""
    return outline_of(spec.model).costs(spec)


def parameter_count(model: ModelSpec) -> int:
    """Parameters of the whole model; a tied matrix counts once."""
    spec = RunSpec.model_validate({"model": model.model_dump()})
    return sum(sum(unit.parameters) for unit in unit_costs(spec)) - outline_of(model).shared()


def boundary_elements(spec: RunSpec) -> list[int]:
    """For each layer the elements of the activation that enters it, for one micro-batch; 0 for the first."""
    return outline_of(spec.model).boundary_elements(spec.micro_batch_size)
