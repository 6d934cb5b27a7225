"""A learning rate that is `factor` times too high from `step` on: the loss spikes, or becomes NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from parallel_core import limits
from parallel_core.analysis.quantities import bound_text
from parallel_core.faults.base import Fault

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


class HighLr(Fault):
    kind: Literal["high_lr"] = "high_lr"
    factor: Annotated[float, Field(gt=1, le=1e30)] = 1000.0
    step: Annotated[int, Field(ge=0, le=limits.MAX_STEPS)] = 0
    title: ClassVar[str] = "Learning rate too high"
    blurb: ClassVar[str] = "the loss spikes or becomes NaN"
    slows: ClassVar[bool] = False
    hints: ClassVar[dict[str, str]] = {"factor": "times the learning rate", "step": "the first such step"}

    @property
    def sentence(self) -> str:
        return f"the learning rate is {bound_text(self.factor)} times as high from step {self.step} on"

    def check(self, spec: RunSpec) -> None:
        self.need_step(spec, self.step)

    def lr_factor(self, step: int) -> float:
        return self.factor if step >= self.step else 1.0
