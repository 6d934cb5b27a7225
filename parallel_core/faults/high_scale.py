"""An initial loss scale that is far too high for fp16: gradients overflow, steps are skipped until it has fallen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from parallel_core import limits
from parallel_core.analysis.quantities import bound_text
from parallel_core.faults.base import Fault
from parallel_core.rules import Proposal

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


class HighScale(Fault):
    kind: Literal["high_scale"] = "high_scale"
    scale: Annotated[float, Field(ge=2.0**17, le=limits.MAX_LOSS_SCALE)] = 2.0**40
    title: ClassVar[str] = "Loss scale too high"
    blurb: ClassVar[str] = "fp16 gradients overflow, steps are skipped"
    slows: ClassVar[bool] = False
    hints: ClassVar[dict[str, str]] = {"scale": "the first one"}

    @property
    def sentence(self) -> str:
        return f"fp16 begins with a loss scale of {bound_text(self.scale)}"

    def check(self, spec: RunSpec) -> None:
        if spec.train.precision != "fp16":
            problem = f"precision={spec.train.precision} has no loss scale that {self.kind} would raise; use"
            proposal = Proposal("precision={}", "train.precision", ["fp16"])
            raise self.wrong("", problem, proposal, others=("train.precision",))

    def never_after(self, step: int) -> dict[str, str]:
        return {self.at(): "The run goes on with the loss scale of the checkpoint; leave this fault out."}

    def breaks(self, spec: RunSpec) -> RunSpec:
        return spec.model_copy(update={"train": spec.train.model_copy(update={"loss_scale": self.scale})})
