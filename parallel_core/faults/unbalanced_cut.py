"""A pipeline cut in the wrong place: one stage takes `units` layers from the next stage (the last stage: from the
previous one)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from parallel_core.faults.base import Fault
from parallel_core.rules import Proposal

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


class UnbalancedCut(Fault):
    kind: Literal["unbalanced_cut"] = "unbalanced_cut"
    stage: Annotated[int, Field(ge=0, le=16_383)] = 0
    units: Annotated[int, Field(ge=1, le=1_024)] = 2
    title: ClassVar[str] = "Unbalanced cut"
    blurb: ClassVar[str] = "one pipeline stage has layers of its neighbour"
    hints: ClassVar[dict[str, str]] = {"stage": "the heavy one", "units": "layers it takes"}

    @property
    def sentence(self) -> str:
        return f"stage {self.stage} has {self.units} layer{'s' if self.units > 1 else ''} of its neighbour"

    def check(self, spec: RunSpec) -> None:
        stages = spec.parallel.stages
        if stages == 1:
            longer = Proposal("pp={} or more", "parallel.pp", [2, 3, 4, self.stage + 1])
            problem = f"pp=1 is one stage and has no cut that {self.kind} would move; use"
            raise self.wrong("", problem, longer, others=("parallel.pp",))
        if self.stage >= stages:
            problem = f"stage={self.stage} is no stage: pp={spec.parallel.pp} has {stages}; use"
            raise self.wrong(
                "stage", problem, self.proposal("stage", range(stages), self.stage), others=("parallel.pp",)
            )
        donor, most = self._donor(spec, self.stage)
        if most and self.units > most:
            problem = f"stage {donor} can give stage={self.stage} at most {most}, not units={self.units}; use"
            fewer = Proposal("units={} or less", self.at("units"), [most])
            raise self.wrong("units", problem, fewer, others=(self.at("stage"),))
        if not most:
            able = [stage for stage in range(stages) if self._donor(spec, stage)[1]]
            proposals = [self.proposal("stage", able, self.stage)] if able else []
            problem = f"with stage={self.stage}, stage {donor} is to give units={self.units}, and it has one; use"
            raise self.wrong("stage", problem, *proposals, self.left_out(spare=bool(able)), others=(self.at("units"),))

    def breaks(self, spec: RunSpec) -> RunSpec:
        edges = self._edges(spec)
        if self.stage < spec.parallel.stages - 1:
            edges[self.stage + 1] += self.units
        else:
            edges[self.stage] -= self.units
        split = spec.parallel.model_copy(update={"cuts": tuple(edges[1:-1])})
        return spec.model_copy(update={"parallel": split})

    def _donor(self, spec: RunSpec, stage: int) -> tuple[int, int]:
        """Returns (the stage that loses layers to `stage`, the most it can lose)."""
        donor = stage + 1 if stage < spec.parallel.stages - 1 else stage - 1
        edges = self._edges(spec)
        return donor, edges[donor + 1] - edges[donor] - 1

    @staticmethod
    def _edges(spec: RunSpec) -> list[int]:
        """Returns the number of the first layer of each stage, and the number of layers."""
        from parallel_core.layout import Layout  # `layout` imports `spec`, which imports this module

        units = Layout.of(spec).stage_units
        return [part[0] for part in units] + [units[-1][-1] + 1]
