"""A rank whose compute operations take `factor` times as long; it really computes in the additional time."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from parallel_core.faults.base import RankFault


class Straggler(RankFault):
    kind: Literal["straggler"] = "straggler"
    factor: Annotated[float, Field(gt=1, le=100)] = 2.0
    title: ClassVar[str] = "Straggler"
    blurb: ClassVar[str] = "one rank computes slower than the others"
    hints: ClassVar[dict[str, str]] = {"rank": "the slow one", "factor": "times as long"}

    @property
    def sentence(self) -> str:
        return f"rank {self.rank} takes {self.factor:g} times as long to compute"

    def slowdown(self, rank: int) -> float:
        return self.factor if rank == self.rank else 1.0
