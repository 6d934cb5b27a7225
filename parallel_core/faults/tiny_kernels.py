"""Many tiny kernels: after every compute operation a rank launches `count` kernels that do almost nothing.

Their cost is that of the launches, as in a model of many small unfused operations.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from parallel_core.faults.base import RankFault


class TinyKernels(RankFault):
    kind: Literal["tiny_kernels"] = "tiny_kernels"
    count: Annotated[int, Field(ge=1, le=1_000_000)] = 2_000
    title: ClassVar[str] = "Tiny kernels"
    blurb: ClassVar[str] = "one rank is busy with launching, not with computing"
    hints: ClassVar[dict[str, str]] = {"rank": "which one", "count": "more launches an operation"}

    @property
    def sentence(self) -> str:
        return f"rank {self.rank} launches {self.count} more kernels with every operation"

    def launches(self, rank: int) -> int:
        return self.count if rank == self.rank else 0
