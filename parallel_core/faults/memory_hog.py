"""Memory that a rank wastes throughout the run, like a leak or a forgotten cache."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from parallel_core.faults.base import RankFault


class MemoryHog(RankFault):
    kind: Literal["memory_hog"] = "memory_hog"
    mib: Annotated[int, Field(ge=1, le=1_048_576)] = 128
    title: ClassVar[str] = "Memory hog"
    blurb: ClassVar[str] = "one rank holds memory for nothing"
    slows: ClassVar[bool] = False
    hints: ClassVar[dict[str, str]] = {"rank": "whose memory", "mib": "MiB it holds"}

    @property
    def sentence(self) -> str:
        return f"rank {self.rank} holds {self.mib} MiB for nothing"

    def held_bytes(self, rank: int) -> int:
        return self.mib << 20 if rank == self.rank else 0
