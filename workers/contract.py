"""The messages between controller and workers: names of Redis keys, shapes of what travels.

controller -> worker   one Celery task `workers.start` on the queue of the worker (`queue_of`) with the StartMessage as
                       its one positional argument; entries of the worker's control stream (`control_stream`, one
                       field `body`: JSON of a ControlEntry), which only ever repeat what the database already says
                       (level-triggered), so that a lost or doubled one is harmless.
worker -> controller   entries of the one stream EVENTS, in the order they happened on that worker.

A stream entry of EVENTS has the fields `worker` (str), `boot` (id of this life of the worker), `kind`, `body` (JSON)
and, for `batch`, `data` (raw bytes):

heartbeat   every HEARTBEAT_S. body = HeartbeatBody.
attempt     body = AttemptBody: what became of an attempt.
batch       body = BatchBody; data = bytes [start, end) of one file of the attempt, cut at frame (events) or any (log)
            boundaries. (attempt, rank, channel, end) is the cursor: a batch at or below it is skipped; one that starts
            above it is a gap and is answered by a `rewind` control entry.
store       body = {attempt, host, port}: where the first node's rendezvous store listens.
profile     body = ProfileBody: the cost table of a model that was asked for, or why there is none.
dropped     body = {run}: no checkpoint of that run, which was deleted, is here any more.

Nothing here imports Django, Celery or Redis: both sides read this file.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

EVENTS = "trainyard:events"
GROUP = "controller"
NO_SUCH_BLOB = "0" * 64
"""What a worker asks the web for to hear whether its token is good: "not found" says that it is."""
LIVE = "trainyard:live"
"""Short 'new data' entries for the SSE reader: fields run, study (or ''), or search, and what (JSON list of topics)."""

START_TASK = "workers.start"
HEARTBEAT_S = 2.0
LEASE_S = 3 * HEARTBEAT_S
STOP_GRACE_S = 2.0
"""From TERM to KILL when an attempt is stopped: ranks that are between steps save a checkpoint in it."""
START_LIMIT_S = 30.0
PROFILE_LIMIT_S = 600.0
"""A worker's profile of a model has its devices for as long at most; an attempt that arrives meanwhile waits."""
MAX_LOG_BYTES = 20 * 1024 * 1024
MAX_BATCH_BYTES = 256 * 1024


def queue_of(worker: str) -> str:
    return f"worker.{worker}"


def control_stream(worker: str) -> str:
    return f"trainyard:control:{worker}"


class Node(TypedDict):
    """One host's share of an attempt: `devices` are indices on that worker, one rank each from `first_rank` on."""

    worker: str
    devices: list[int]
    first_rank: int
    address: str
    shares: NotRequired[bool]
    """Its checkpoints lie in a folder that other hosts have, too (HeartbeatBody.shared_checkpoints)."""


class ResumeFrom(TypedDict):
    """A checkpoint by its name: the run that wrote it and how many steps were done. Never a path."""

    run: int
    step: int


class StartMessage(TypedDict):
    run: int
    attempt: int  # primary key of the Attempt row: unique over all runs, and over databases that were thrown away
    number: int  # 1 for the first attempt of the run
    spec: dict[str, Any]
    nodes: list[Node]
    resume: NotRequired[ResumeFrom | None]
    """Where a first attempt begins; a later one prefers the run's own newest checkpoint on its host."""
    wish: NotRequired[dict[str, Any] | None]
    """What to do instead of training: text to generate from that checkpoint
    (parallel_core.generation_request.TextRequest), or {"links": [two workers]}, between which messages are timed
    (parallel_core.profile.host_link_bench)."""


class Device(TypedDict):
    index: int
    kind: Literal["cpu", "cuda"]
    name: str
    memory_total: int  # bytes
    memory_used: int
    load: float  # 0 .. 1


class RankProgress(TypedDict):
    step: int
    op: str
    age: float  # seconds since the rank last moved


class HeartbeatBody(TypedDict):
    host: str
    version: str
    time: float
    devices: list[Device]
    load: float  # one-minute load average over cores
    memory_total: int
    memory_available: int
    attempts: dict[str, dict[str, RankProgress]]  # live attempts -> rank -> where it is
    disk_free: NotRequired[int]
    """Bytes left where its checkpoints go."""
    shared_checkpoints: NotRequired[bool]
    """Its checkpoints lie in a folder that other hosts have, too: runs over several hosts can save there."""
    leaving: NotRequired[bool]
    """It ends in an orderly way and takes no more runs. Said before its attempts end, so that none comes back to it."""
    token_files: NotRequired[list[dict[str, Any]]]
    """{name, tokens, vocab} of those in this worker's data folder (parallel_core.data.token_file)."""
    refused: NotRequired[str]
    """Why the web would give this worker no uploaded text, with the setting to change; "" where it would."""
    calibration: NotRequired[dict[str, Any]]
    """Result of `parallel_core calibrate` on this worker: {device, model: {...}, global_batch, step_time}."""


Outcome = Literal["succeeded", "failed", "cancelled", "interrupted"]
"""interrupted = the yard was stopped in an orderly way: the run is queued again and no retry is used up."""

Cause = Literal[
    "",
    "user_code",
    "out_of_memory",
    "killed_by_signal",
    "worker_lost",
    "timed_out",
    "no_progress",
    "cancelled",
    "refused",
    "interrupted",
]


class Begins(TypedDict):
    """Where an attempt began: `step` steps were done by `attempt` (primary key) of `run`; or 0, and `why`."""

    step: int
    run: int
    attempt: int
    why: str


class AttemptBody(TypedDict):
    """`state` starting | running | ended; the rest is there at the end only."""

    attempt: int
    state: Literal["starting", "running", "ended"]
    begins: NotRequired[Begins]  # with `running`
    outcome: NotRequired[Outcome]
    cause: NotRequired[Cause]
    detail: NotRequired[str]  # one sentence for a person: "Rank 1 was killed by signal 9 at step 12 in 1F3."
    rank: NotRequired[int]
    signal: NotRequired[int]
    traceback: NotRequired[str]
    exits: NotRequired[dict[str, int]]  # rank -> exit code, negative = signal
    none_left: NotRequired[bool]  # every recorded process was seen to be gone
    peer: NotRequired[bool]  # it ended because ranks on another host had: their host tells why
    sizes: NotRequired[dict[str, int]]  # "<channel>:<rank>" -> final bytes of that file: what the cursor must reach


class ProfileBody(TypedDict):
    """`profile` is the number of the request; one of `table` (profile.table.CostTable as JSON) and `error` is there."""

    profile: int
    table: NotRequired[dict[str, Any]]
    error: NotRequired[str]
    log: NotRequired[str]
    """With an error: the end of what the profile wrote."""


Channel = Literal["events", "log"]


class BatchBody(TypedDict):
    attempt: int
    rank: int
    channel: Channel
    start: int
    end: int


class ControlEntry(TypedDict):
    """cancel: stop it, report cancelled. end: stop it, as ranks on another host have ended, and report that. fence:
    stop it, report nothing. rewind: publish `channel`:`rank` again from `offset`. settled: everything arrived, the
    folder may go. store: where the first node's store listens. profile: measure the model of `spec` when nothing else
    runs; `attempt` is the number of the request. trace: let the ranks trace `step`, as `how`
    (parallel_core.observe.trace_request.How). drop: the checkpoints of a run that was deleted may go; `attempt` is the
    number of the run. up: tell again that all its ranks have a process."""

    kind: Literal["cancel", "end", "fence", "rewind", "settled", "store", "profile", "trace", "drop", "up"]
    attempt: int
    spec: NotRequired[dict[str, Any]]
    rank: NotRequired[int]
    channel: NotRequired[Channel]
    offset: NotRequired[int]
    step: NotRequired[int]
    how: NotRequired[str]
    host: NotRequired[str]
    port: NotRequired[int]
