"""A slow network between the members of a group: each of its collectives takes `ms` milliseconds longer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from parallel_core.faults.base import Fault, Milliseconds

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
        leaf = {"data": "dp", "tensor": "tp"}[self.axis]
        if spec.train.device != "cpu":
            raise self.wrong("", "collectives are made late on CPU devices alone; set train.device to cpu.")
        sizes = {"data": max(spec.parallel.copies), "tensor": max(spec.parallel.tensor_ranks)}
        if sizes[self.axis] == 1:
            able = [axis for axis, size in sizes.items() if size > 1]
            more = f"; this run has {able[0]}-parallel ones" if able else ""
            raise self.wrong("axis", f"{leaf}=1 leaves no {self.axis}-parallel group{more}.", f"parallel.{leaf}")

    def collective_delay(self, axis: str) -> float:
        return self.ms / 1e3 if axis == self.axis else 0.0
