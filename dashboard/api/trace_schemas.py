"""Response schemas of the API's operations on traces."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Schema
from pydantic import Field


class TraceOut(Schema):
    """`state`: queued, running (being read), succeeded or failed. `read` of `size` bytes have been read."""

    id: int
    name: str
    owner: str
    state: str
    detail: str = Field(description="why it could not be read")
    size: int
    read: int
    created_at: datetime
    ranks: int
    steps: list[int] = Field(
        description="of `step_count`, the newest 100 and 50 on each side of the middle one; `/steps` has all"
    )
    step_count: int
    broken: list[str] = Field(description="faults that its run injected on purpose, a sentence each")


class TraceRank(Schema):
    rank: int
    file: str
    device: str
    operations: int
    spans: dict[int, int] = Field(description="spans of each of `steps`")


class TraceDetail(TraceOut):
    """`notes` say what is missing, and how certain stages and micro-batches are."""

    notes: list[str]
    files: list[TraceRank]
    spec: dict[str, Any] | None = Field(description="of the run, where a yard exported its step; null of other traces")


class TraceStep(Schema):
    step: int
    spans: dict[int, int] = Field(description="spans of each rank")


class TraceAccount(Schema):
    """Nanoseconds of one rank's step; the components add up to `total`."""

    rank: int
    total: int
    components: dict[str, int]


class TraceFinding(Schema):
    rule: str
    title: str
    evidence: str
    change: str
    effect_ns: int
    rank: int | None
    address: str = Field(description="the place in the timeline of the trace's page; '' where there is none")


class TraceOperation(Schema):
    name: str
    family: str
    count: int
    ns: int


class TraceAnalysis(Schema):
    """`why_not` says why nothing was judged; '' if rules were applied."""

    step: int
    verdict: str
    accounts: list[TraceAccount]
    findings: list[TraceFinding]
    why_not: str
    rules: int
    largest: list[TraceOperation]
