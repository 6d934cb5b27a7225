"""A slow network between the members of a group: each of its collectives takes `ms` milliseconds longer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from parallel_core.faults.base import Fault, Milliseconds
from parallel_core.outline import outline_of
from parallel_core.rules import Proposal, divisors

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


class SlowGroup(Fault):
    kind: Literal["slow_group"] = "slow_group"
    axis: Literal["data", "tensor"] = "data"
    ms: Milliseconds = 20.0
    title: ClassVar[str] = "Slow collectives"
    blurb: ClassVar[str] = "every all-reduce of the replicas, or of the tensor ranks, ends late"
    hints: ClassVar[dict[str, str]] = {"axis": "whose collectives", "ms": "added to each"}

    @property
    def sentence(self) -> str:
        return f"each collective of the {self.axis}-parallel groups takes {self.ms:g} ms longer"

    def check(self, spec: RunSpec) -> None:
        self.need_cpu(spec, "collectives")
        sizes = {"data": max(spec.parallel.copies), "tensor": max(spec.parallel.tensor_ranks)}
        if sizes[self.axis] == 1:
            degrees = {"data": divisors(spec.train.global_batch), "tensor": outline_of(spec.model).tensor_widths()}
            degree = {"data": "dp", "tensor": "tp"}[self.axis]
            field = f"parallel.{degree}"
            proposals = [Proposal("axis={}", self.at("axis"), [axis]) for axis, size in sizes.items() if size > 1]
            proposals += [Proposal(f"{degree}={{}}", field, wider)] if (wider := degrees[self.axis][1:5]) else []
            problem = f"axis={self.axis} slows {self.axis}-parallel groups, and {degree}=1 leaves none; use"
            raise self.wrong("axis", problem, *proposals, self.left_out(spare=bool(proposals)), others=(field,))

    def collective_delay(self, axis: str) -> float:
        return self.ms / 1e3 if axis == self.axis else 0.0
