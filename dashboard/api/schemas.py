"""Request and response schemas of the API. A success is {"data": ..., "meta": {...}}, a refusal {"error": {...}}."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from ninja import Schema
from pydantic import ConfigDict, Field

from dashboard.api.bodies import Body
from dashboard.api.thin_schemas import ThinnedOut
from dashboard.fleet.run_on import MAX_RUN_ON
from dashboard.runs.models import State
from dashboard.runs.name_tags_notes import MAX_NOTES, MAX_TAG, MAX_TAGS
from dashboard.runs.services import MAX_RETRIES, WHEN_RETRIED
from dashboard.runs.waiting.priority import WORDS as PRIORITIES
from dashboard.runs.waiting.spreading import MOST_HOSTS
from parallel_core import limits
from parallel_core.generation_request import MAX_SAMPLES, Token
from parallel_core.limits import MAX_PROMPT
from parallel_core.rules import MOMENT
from parallel_core.spec import RunSpec

T = TypeVar("T")
MAX_ID = 2**63 - 1
StateName = Literal["queued", "starting", "running", "cancelling", "succeeded", "failed", "cancelled", "lost"]
assert set(StateName.__args__) == set(State.values)  # type: ignore[attr-defined]

Id = Annotated[int, Field(ge=1, le=MAX_ID)]
Step = Annotated[int, Field(ge=0, le=limits.MAX_STEPS + 1)]
Gzip = Annotated[bool, Field(description="packed by gzip")]
Rank = Annotated[int, Field(ge=0, le=2**31 - 1)]
Tags = Annotated[list[Annotated[str, Field(max_length=MAX_TAG, pattern=r"^[^\x00]*$")]], Field(max_length=MAX_TAGS)]
Notes = Annotated[str, Field(max_length=MAX_NOTES, pattern=r"^[^\x00]*$")]
Text = Annotated[str, Field(max_length=200, pattern=r"^[^\x00]*$")]

RunOn = Annotated[
    str,
    Field(
        max_length=MAX_RUN_ON,
        pattern=r"^[^\x00]*$",
        description="on which devices: worker:NAME, type:NAME of a device type as Fleet has it, or empty for any",
    ),
]
PriorityName = Literal["low", "normal", "high"]
assert PriorityName.__args__ == PRIORITIES  # type: ignore[attr-defined]

Moment = Annotated[
    str,
    Field(
        max_length=32,
        pattern=MOMENT,
        examples=["2026-11-27"],
    ),
]
"""A date, or a date with a time."""


class Error(Schema):
    code: str
    message: str
    fields: dict[str, str] = Field(description="message by dotted field; empty where no field is to blame")


class Refusal(Schema):
    error: Error


class Envelope(Schema, Generic[T]):
    data: T
    meta: dict[str, Any] = {}


class ResumeFrom(Schema):
    """A checkpoint: `step` steps done by `run`. Model and precision must be the same, the layout may differ."""

    model_config = ConfigDict(extra="forbid")
    run: Id
    step: Annotated[int, Field(ge=1, le=limits.MAX_STEPS)]


FIRST_RUN: Any = {
    "name": "by the API",
    "spec": {
        "model": {"layers": 4, "hidden": 128, "heads": 4, "seq": 128},
        "train": {"steps": 20, "warmup_steps": 3, "global_batch": 16},
    },
}
"""An example of a request body that any yard can run."""


class SubmitIn(Body):
    """A run to queue, over `hosts` hosts (0: as few as it takes; 1: on one).

    `anyway` overrules only the memory prediction. A run that joins a `study` has `run_on` and `priority` from that.
    """

    model_config = ConfigDict(json_schema_extra={"example": FIRST_RUN})
    spec: Annotated[RunSpec, Field(description="what is trained and how: the tab Spec of any run shows one")]
    name: Annotated[str, Field(max_length=limits.MAX_NAME, pattern=r"^[^\x00]*$")] = ""
    tags: Tags = []
    retries: Annotated[int, Field(ge=0, le=MAX_RETRIES, description=WHEN_RETRIED)] = 0
    hosts: Annotated[int, Field(ge=0, le=MOST_HOSTS)] = 0
    run_on: RunOn = ""
    priority: PriorityName = "normal"
    anyway: bool = False
    resume_from: ResumeFrom | None = None
    based_on: Annotated[Id | None, Field(description="the run whose spec this one changes, to be named beside it")] = (
        None
    )
    study: Annotated[
        Id | None, Field(description="yours, which the run joins: it then runs with nothing beside it")
    ] = None


class RunEdit(Body):
    """What is left out stays."""

    model_config = ConfigDict(json_schema_extra={"example": {"tags": ["kept"]}})
    name: Annotated[str, Field(min_length=1, max_length=limits.MAX_NAME, pattern=r"^[^\x00]*$")] | None = None
    tags: Tags | None = None
    notes: Notes | None = None
    run_on: RunOn | None = Field(None, description="while it is queued; of a run of a study, of all its queued runs")
    priority: PriorityName | None = Field(None, description="in the same way")


class GenerateIn(Body):
    """Text to generate from the run's checkpoint of `step` (null: the newest) on `pp` stages of `tp` devices; `dp`
    replicas of them share the `samples`. Step 0 of a run that begins from weights is these weights.

    `prompt` is text if the vocabulary has at most 256 tokens (bytes); else `ids` has the numbers of tokens. One of them
    is sent, never both.
    """

    model_config = ConfigDict(json_schema_extra={"example": {"prompt": "import ", "new": 64}})
    step: Annotated[int, Field(ge=0, le=limits.MAX_STEPS)] | None = None
    prompt: Annotated[str, Field(max_length=MAX_PROMPT, pattern=r"^[^\x00]*$")] = ""
    ids: Annotated[list[Token], Field(max_length=MAX_PROMPT)] = []
    new: Annotated[int, Field(ge=1, le=limits.MAX_SEQ)] = 64
    samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 1
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 0.0
    top_k: Annotated[int, Field(ge=0, le=limits.MAX_VOCAB)] = 0
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 7
    tp: Annotated[int, Field(ge=1, le=limits.MAX_DEGREE)] = 1
    pp: Annotated[int, Field(ge=1, le=limits.MAX_DEGREE)] = 1
    dp: Annotated[int, Field(ge=1, le=limits.MAX_DEGREE)] = 1
    name: Annotated[str, Field(max_length=limits.MAX_NAME, pattern=r"^[^\x00]*$")] = ""
    run_on: RunOn = ""
    priority: PriorityName = "normal"


class RunOut(Schema):
    """A run as in lists. Times in seconds, sizes in bytes, moments in UTC."""

    id: int
    name: str
    state: str
    cause: str
    detail: str
    strategy: str
    owner: str
    study: int | None
    tags: list[str]
    broken: list[str] = Field(description="faults injected on purpose, a sentence each; empty for a usual run")
    devices: int
    step: int | None = Field(description="the newest step, as an index from 0; null before the first")
    loss: float | None = Field(description="of the newest step; null where it is not finite")
    step_time_s: float | None = Field(
        description="median of the timed steps; until it has ended, of the newest of them"
    )
    tokens_per_s: float | None = Field(
        description="of all devices at the median step; until it has ended, in the newest step. Images or positions "
        "where the speed of its model counts these. Of a run that has generated text, all its tokens over its time"
    )
    memory_peak_bytes: int | None = Field(description="measured on the rank that held most")
    created_at: datetime
    started_at: datetime | None = Field(description="start of its newest attempt; null while that has not started")
    ended_at: datetime | None
    steps_done: int = Field(description="as pages and checkpoints count: `step` + 1, 0 before the first")
    final_loss: float | None = Field(description="loss of its last step; null until it has ended")
    held_out: float | None = Field(description="newest loss of the held-out samples; null where none was evaluated")
    run_on: str = Field(description="the devices chosen for it, worker:NAME or type:NAME; empty for any")
    priority: PriorityName = Field(description="how soon it is served while it is queued")
    first_started_at: datetime | None = Field(description="start of its first attempt that started, as `started_at`")


class RunListed(RunOut):
    """A run of a list; `spec` if that was asked for."""

    spec: dict[str, Any] | None


class Placed(Schema):
    """Devices of one worker, a rank each from `first_rank` on."""

    worker: str
    devices: list[int]
    first_rank: int


class ResumedFrom(Schema):
    """A checkpoint after `step` steps done."""

    run: int | None = Field(description="null where that run has been deleted: a run like this one would begin anew")
    step: int


class CheckpointOut(Schema):
    """A checkpoint on one worker's disk."""

    step: int = Field(description="steps done, as `resume_from` names it")
    bytes: int
    at: datetime = Field(description="when it was complete")
    seconds: float = Field(description="time to write it, beside training")
    blocked: float = Field(description="seconds for which training stood still: until the one before was written, too")
    held_out: float | None = Field(description="held-out loss after these steps; null where it was not evaluated then")
    worker: str
    damaged: bool = Field(description="whether a run that was to begin from it found it damaged")


class RunDetail(RunOut):
    notes: str
    spec: dict[str, Any]
    summary: dict[str, Any] = Field(
        description="what was measured of a run that has ended, as docs/api.md lists it; {} until it is computed"
    )
    retries_left: int
    cancel_requested_at: datetime | None
    waits_for: str
    hosts: int = Field(description="over how many its ranks are spread evenly; 0: as few as it takes")
    placed: list[Placed] = Field(description="where its newest attempt is, or was; empty before the first")
    resume_from: ResumedFrom | None = Field(description="the checkpoint it begins from; null of one that begins anew")
    based_on: int | None = Field(description="the run whose spec it changes; null of one made from no other")
    checkpoints: list[int] = Field(
        description="at how many steps done it can be resumed; none that a run found damaged"
    )
    checkpoints_detail: list[CheckpointOut] = Field(description="every copy that a worker has, also damaged ones")
    task: dict[str, Any] = Field(
        description="the text to generate, or the two workers whose `links` are timed; {} of a run that trains"
    )
    thinned: ThinnedOut | None
    generated: dict[str, Any] | None = Field(
        description="tokens and texts of each sample, prefill and seconds of each token, kv_bytes of each rank, so far"
    )


class SeriesOut(Schema):
    """`shown` of `total` points; the three lists have the length `shown`. Steps count from 0; times are Unix seconds by
    the broker's clock, where it is known how the host's own one differs. null = not a finite number."""

    name: str
    rank: int
    step: list[int]
    time: list[float]
    value: list[float | None]
    shown: int
    total: int


class RankSpans(Schema):
    """Columns of equal length: one entry for each span, nanoseconds on the host's monotonic clock."""

    rank: int
    kind: list[str]
    lane: list[str]
    stage: list[int]
    micro_batch: list[int]
    replica: list[int]
    start: list[int]
    end: list[int]
    bytes: list[int]


class SpansOut(Schema):
    """Steps count from 0."""

    step: int | None
    traced_steps: list[int]
    ranks: list[RankSpans]
    shown: int
    total: int


class LogOut(Schema):
    rank: int
    attempt: int = Field(description="that wrote it: the newest that wrote anything, 0 while none has")
    text: str
    start: int
    end: int
    total: int


def refusals(*codes: int) -> dict[int, type[Refusal]]:
    """Returns the response schemas of an operation's documented refusals by status code."""
    return dict.fromkeys(sorted(set(codes)), Refusal)


SEES: tuple[int, ...] = (400, 401, 403, 404, 422)
