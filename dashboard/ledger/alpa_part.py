"""A part of the Partition page: Alpa's two levels for the profiled model on the worker's devices, beside the others."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.ledger.fleet_page import run_address
from dashboard.ledger.models import Profile
from parallel_core.analysis.quantities import bytes_text, seconds_text
from parallel_core.plan.alpa.costs import LayerCosts, Measured
from parallel_core.plan.alpa.inter import Mesh, Plan, Search
from parallel_core.plan.alpa.plans import Named, beside, summary
from parallel_core.profile.table import CostTable
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import RunSpec

MOST_DEVICES = 16
"""More would be searched for longer than a page may take."""
MOST_RUNS = 6


@dataclass(frozen=True)
class Row:
    """One plan: equation 2's step and the simulator's, and New run filled in where it can run."""

    name: str
    cuts: str = ""
    meshes: str = ""
    seconds: str = ""
    simulated: str = ""
    memory: str = ""
    note: str = ""
    run: str = ""


class Part:
    """`samples` of a micro-batch, `devices` of one host."""

    def __init__(self, profile: Profile, samples: int, devices: int) -> None:
        spec, self.table = RunSpec.model_validate(profile.spec), CostTable.model_validate(profile.table)
        self.devices = min(devices, MOST_DEVICES)
        self.micro_batches = max(1, spec.train.global_batch // samples)
        costs = LayerCosts(spec, Measured(self.table), samples)
        self.units = costs.units
        self.found = beside(Search(costs, Mesh(1, self.devices), self.micro_batches))

    def sentence(self) -> str:
        """What the search says first."""
        best = self.found[0].plan
        if best is None:
            return f"{self.devices} devices cannot share out these micro-batches."
        able = next((named for named in self.found[1:] if named.spec is not None and named.plan is not None), None)
        first = f"{seconds_text(best.seconds)} a step is the least of any plan: {_shape(best)}."
        if able is None or able.plan is None:
            return f"{first} No run of this model has such a plan."
        if self.found[0].spec is not None:
            return f"{first} It can run."
        return f"{first} The best that can run takes {able.plan.seconds / best.seconds:.2f} times as long."

    def stages(self) -> list[str]:
        """A line a stage of the optimum."""
        return summary(self.found[0].plan, self.units) if self.found[0].plan else []

    def rows(self) -> list[Row]:
        """The optimum, the fastest that can run, and the plans of others."""
        even = [named for named in self.found if named.name.startswith("Alpa, ")]
        return [self._row(named) for named in self.found if named not in even[MOST_RUNS:]]

    def _row(self, named: Named) -> Row:
        plan, spec = named.plan, named.spec
        if plan is None:
            return Row(named.name, note=named.why_not)
        return Row(
            named.name,
            ", ".join(map(str, plan.cuts)) or "none",
            _shape(plan),
            seconds_text(plan.seconds),
            seconds_text(predict_step(spec, self.table).seconds) if spec else "",
            bytes_text(max(stage.memory for stage in plan.stages)),
            named.why_not,
            run_address(spec) if spec else "",
        )


def _shape(plan: Plan) -> str:
    """`2 x 1, 1 x 2`: dp x tp of each stage."""
    return ", ".join(f"{stage.dp} × {stage.tp}" for stage in plan.stages)
