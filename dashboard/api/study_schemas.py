"""Request and response schemas of the API's operations on studies."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Schema
from pydantic import ConfigDict, Field

from dashboard.api import schemas as s
from dashboard.api.bodies import Body
from dashboard.runs.services import MAX_RETRIES, WHEN_RETRIED
from dashboard.studies.new.variants import MAX_RUNS, MOST_CALLED
from dashboard.studies.services import MAX_REPEATS
from parallel_core import limits
from parallel_core.spec import RunSpec


class StudyOut(Schema):
    id: int
    name: str
    kind: str
    owner: str
    created_at: datetime
    runs: dict[str, int] = Field(description="number of runs by state")
    baseline: int | None
    run_on: str = Field(description="the devices chosen for its runs, worker:NAME or type:NAME; empty for any")
    priority: s.PriorityName = Field(description="how soon they are served while they are queued")
    side_by_side: bool = Field(description="its runs share hosts with each other and with others: no time is compared")


class MemberOut(s.RunOut):
    """A run of a study."""

    position: int = Field(description="its place in the study, from 0; a run queued later to repeat it has the same")
    repeats: int | None = Field(
        description="the run that it was queued later to repeat; null of those the study began with"
    )


class StudyDetail(StudyOut):
    notes: str
    base: dict[str, Any]
    settings: dict[str, Any]
    members: list[MemberOut]


class MemberIn(Schema):
    """One of the runs of a new study."""

    model_config = ConfigDict(extra="forbid")
    label: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MOST_CALLED,
            pattern=r"^[^\x00]*[^\x00\s][^\x00]*$",
            description="the run's name, another for each",
        ),
    ]
    spec: RunSpec


class StudyIn(Body):
    """Runs to compare, in this order, each with nothing beside it unless `side_by_side`; the first is the baseline."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "name": "two batches",
                "runs": [
                    {
                        "label": f"batch {batch}",
                        "spec": s.FIRST_RUN["spec"] | {"train": {"steps": 20, "global_batch": batch}},
                    }
                    for batch in (8, 16)
                ],
            }
        },
    )
    name: Annotated[str, Field(min_length=1, max_length=limits.MAX_NAME, pattern=r"^[^\x00]*$")]
    runs: Annotated[list[MemberIn], Field(min_length=1, max_length=MAX_RUNS)]
    repeats: Annotated[int, Field(ge=1, le=MAX_REPEATS, description="of each run: the whole list once, then again")] = 1
    retries: Annotated[int, Field(ge=0, le=MAX_RETRIES, description=f"of each run, {WHEN_RETRIED}")] = 0
    run_on: s.RunOn = ""
    priority: s.PriorityName = "normal"
    side_by_side: Annotated[
        bool, Field(description="as many runs at a time as there are devices: only their losses are compared")
    ] = False


class StudyEdit(Body):
    """What is left out stays."""

    model_config = ConfigDict(json_schema_extra={"example": {"name": "two batches, again"}})
    name: Annotated[str, Field(min_length=1, max_length=limits.MAX_NAME, pattern=r"^[^\x00]*$")] | None = None
    notes: s.Notes | None = None
    run_on: s.RunOn | None = Field(None, description="of all its queued runs, and of those that join it later")
    priority: s.PriorityName | None = Field(None, description="in the same way")


class CancelOut(Schema):
    cancelled: list[s.RunOut] = Field(description="those that had not ended: cancelled now, or asked to stop")
    left: list[s.RunOut] = Field(description="those of others, which go on")


class AgainIn(Body):
    which: Literal["repeatable", "cancelled"] = Field(
        default="repeatable", description="repeatable: those that were disturbed or cut off"
    )


class AgainOut(Schema):
    queued: list[s.RunOut]
    refused: dict[str, str] = Field(
        description="why not, of those that were left out, by name; with ` #` and the run's number behind it where "
        "several of them have one name"
    )
    waits: dict[str, str] = Field(
        description="why, of those that no worker takes now (all while the controller is away), in the same way"
    )
