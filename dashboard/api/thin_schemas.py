"""What the API takes and returns on freeing the space of a run (runs.tracing.thinning)."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema

from dashboard.api.bodies import Body
from dashboard.runs.tracing.thinned import Thinned


class ThinnedOut(Schema):
    """That the spans of older traced steps were dropped to free space, and which steps stay. `profiles`: so were the
    files of torch.profiler and memory snapshots."""

    at: datetime
    by: str | None = Field(description="who asked for it; null: due to their age")
    dropped: int = Field(description="number of traced steps whose spans were dropped")
    kept: list[int]
    profiles: bool

    @classmethod
    def of(cls, one: Thinned | None) -> ThinnedOut | None:
        if one is None:
            return None
        who = one.by.get_username() if one.by else None
        return cls(at=one.at, by=who, dropped=one.dropped, kept=one.keep, profiles=one.profiles)


class ThinIn(Body):
    """`profiles`: also drop the files of torch.profiler and memory snapshots."""

    profiles: bool = False
