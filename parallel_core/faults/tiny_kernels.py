"""Many tiny kernels: after every compute operation a rank launches `count` kernels that do almost nothing.

Their cost is that of the launches, as in a model of many small unfused operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from parallel_core.faults.base import Fault, Rank

if TYPE_CHECKING:
    from parallel_core.spec import RunSpec


class TinyKernels(Fault):
    kind: Literal["tiny_kernels"] = "tiny_kernels"
    rank: Rank = 0
    count: Annotated[int, Field(ge=1, le=1_000_000)] = 2_000
    title: ClassVar[str] = "Tiny kernels"
    blurb: ClassVar[str] = "one rank is busy with launching, not with computing"
    hints: ClassVar[dict[str, str]] = {"rank": "which one", "count": "more launches an operation"}

    @property
    def sentence(self) -> str:
        return f"rank {self.rank} launches {self.count} more kernels with every operation"

    def check(self, spec: RunSpec) -> None:
        self.need_rank(spec, self.rank)

    def launches(self, rank: int) -> int:
        return self.count if rank == self.rank else 0
