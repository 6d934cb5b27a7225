"""The messages between controller and workers: names of Redis keys, and the types of what is sent.

controller -> worker   one Celery task `workers.start` on the queue of the worker (`queue_of`) with the StartMessage as
                       its only positional argument; entries of the worker's control stream (`control_stream`, one
                       field `body`: JSON of a ControlEntry), which only repeat what the database already says
                       (level-triggered), so that a lost or duplicate one does no harm.
worker -> controller   entries of the one stream EVENTS, in the order in which they happened on that worker.

A stream entry of EVENTS has the fields `worker` (str), `boot` (id of this life of the worker), `kind`, `body` (JSON)
and, for `batch`, `data` (raw bytes):

heartbeat   every HEARTBEAT_S. body = HeartbeatBody.
attempt     body = AttemptBody: the state of an attempt, and how it ended.
batch       body = BatchBody; data = bytes [start, end) of one file of the attempt, cut at frame (events) or any (log)
            boundaries. The end of what was stored of (attempt, rank, channel) is the cursor: a batch that ends at or
            below it is skipped; one that starts above it is a gap and is answered by a `rewind` control entry. Where
            the worker has dropped spans, `omitted` records (parallel_core.observe.records) stand for their bytes.
store       body = {attempt, host, port}: where the first node's rendezvous store listens.
profile     body = ProfileBody: the requested cost table of a model, or why there is none.
dropped     body = {run}: this worker has no checkpoint of that run, which was deleted, any more.

Nothing here imports Django, Celery or Redis, because both sides import this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # before Python 3.12, pydantic accepts no other TypedDict

EVENTS = "trainyard:events"
GROUP = "controller"
NO_SUCH_BLOB = "0" * 64
"""A blob that a worker requests from the web only to check its token: "not found" means that the token is valid."""
LIVE = "trainyard:live"
"""Stream of short 'new data' entries for the SSE reader: fields run, study (or ''), or search, and what (JSON list of
topics)."""

YARD = "trainyard:yard"
"""Key with the id of the yard whose broker it is (control.claim); only its controller reads and writes it."""
YARD_AT = "trainyard:yard:at"
"""Likewise where the database of the controller at work is; goes some seconds after that one is gone."""

START_TASK = "workers.start"
HEARTBEAT_S = 2.0
LEASE_S = 3 * HEARTBEAT_S
START_LIMIT_S = 30.0
PROFILE_LIMIT_S = 600.0
"""The longest time for which a profile of a model may hold a worker's devices; an attempt that arrives then waits."""
STOP_LIMIT_S = 7.0
"""The longest time for which ranks that were told to end may still hold their devices; the next attempt there waits."""
MOST_TEXTS = 64
"""How many texts of its cache a worker names in one heartbeat."""
Task = Literal["", "generate", "links"]
TASKS: tuple[Task, ...] = ("generate", "links")
"""What this version can do instead of training: generate text, time messages between two hosts."""
MAX_LOG_BYTES = 20 * 1024 * 1024
MAX_BATCH_BYTES = 256 * 1024


def queue_of(worker: str) -> str:
    return f"worker.{worker}"


def control_stream(worker: str) -> str:
    return f"trainyard:control:{worker}"


def task_of(task: Mapping[str, Any] | None) -> Task:
    """Which of TASKS the `task` of a StartMessage is; '' = the run trains."""
    if not task:
        return ""
    return "links" if "links" in task else "generate"


class Node(TypedDict):
    """One host's share of an attempt: `devices` are indices on that worker, one rank each from `first_rank` on."""

    worker: str
    devices: list[int]
    first_rank: int
    address: str
    shares: NotRequired[bool]
    """Whether its checkpoints are in a folder that other hosts also have (HeartbeatBody.shared_checkpoints)."""


class ResumeFrom(TypedDict):
    """A checkpoint: the run that wrote it and the number of steps done. Never a path."""

    run: int
    step: int


class RunIdentity(TypedDict):
    """Which run a number means: another database, or a backup that was restored, gives the same numbers again."""

    uid: str
    """Random, drawn with the run: lower-case hexadecimal digits."""
    attempts: list[int]
    """Ids of the run's attempts so far: by them, a worker recognises the checkpoints of versions that know no uid."""


def checkpoint_folder(run: int, uid: str) -> str:
    """The name of the folder in which a worker keeps the checkpoints of a run; `uid` is '' for a run without one."""
    return f"{run}-{uid}" if uid else str(run)


class StartMessage(TypedDict):
    run: int
    attempt: int  # primary key of the Attempt row: unique over all runs, also those of earlier, deleted databases
    number: int  # 1 for the first attempt of the run
    spec: dict[str, Any]
    """A RunSpec, without fields at their default that one of the nodes' workers does not know."""
    nodes: list[Node]
    resume: NotRequired[ResumeFrom | None]
    """Where a first attempt begins; a later one prefers the run's own newest whole checkpoint on its host."""
    identity: NotRequired[RunIdentity]
    """Of `run`; absent for a run that was made before there were any: its number alone means it."""
    read: NotRequired[dict[str, str]]
    """What earlier attempts of the run read, as in the `reads` of hello (parallel_core.observe.records): its ranks
    refuse other data, or other weights, of the same name."""
    resume_identity: NotRequired[RunIdentity]
    """Of the run in `resume`, likewise."""
    task: NotRequired[dict[str, Any] | None]
    """What to do instead of training: text to generate from that checkpoint
    (parallel_core.generation_request.TextRequest), or {"links": [two workers]} between which to time messages
    (parallel_core.profile.host_link_bench)."""


class Device(TypedDict):
    index: int
    kind: Literal["cpu", "cuda"]
    name: str
    memory_total: int  # bytes
    memory_used: int
    load: float  # 0 .. 1


class Unusable(TypedDict):
    """A device that is there but cannot be used; `why` is a sentence."""

    index: int
    kind: Literal["cpu", "cuda"]
    name: str
    why: str


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
    unusable: NotRequired[list[Unusable]]
    """Devices that are not among `devices` because they cannot be used; the others keep their indices."""
    disk_free: NotRequired[int]
    """Bytes free where its checkpoints go."""
    shared_checkpoints: NotRequired[bool]
    """Whether its checkpoints are in a folder that other hosts also have, so that runs over several hosts can save
    there."""
    across_hosts: NotRequired[bool]
    """Whether it can have a part of a run over several hosts; True where absent."""
    tasks: NotRequired[list[str]]
    """What it can do instead of training (TASKS); absent from workers of a version that ignores a message's `task`, and
    would train."""
    fields: NotRequired[list[str]]
    """Fields of a RunSpec, kinds of faults and words of choices that it knows beyond
    parallel_core.known_fields.EARLIEST; none where absent."""
    leaving: NotRequired[bool]
    """It shuts down in an orderly way and takes no more runs. Sent before its attempts end, so that none is placed here
    again."""
    token_files: NotRequired[list[dict[str, Any]]]
    """{name, tokens, vocab, values} of the token files in this worker's data folder (parallel_core.data.token_file);
    absent until they were listed for the first time."""
    more_token_files: NotRequired[int]
    """How many others it has, where `token_files` would be too long with them."""
    weights: NotRequired[list[dict[str, Any]]]
    """{name, model, dtype, parameters, bytes, values}, or {name, why}, of the folders of Llama weights in its data
    folder (parallel_core.checkpoint.weights_listing reads at most 100); absent until they were listed for the first
    time."""
    image_files: NotRequired[list[dict[str, Any]]]
    """{name, images, height, width, channels, classes, values} of the image files there
    (parallel_core.data.image_file); absent until they were listed for the first time."""
    more_image_files: NotRequired[int]
    """How many others it has, as with `more_token_files`."""
    texts: NotRequired[list[str]]
    """sha256 of uploaded texts in its cache, at most MOST_TEXTS; later heartbeats name the others."""
    profiles: NotRequired[list[int]]
    """Ids of the requested profiles that wait or are under way there."""
    still: NotRequired[list[int]]
    """Live attempts over several hosts none of whose ranks here has moved for TRAINYARD_NO_PROGRESS_S."""
    refused: NotRequired[str]
    """Why the web refuses to give this worker uploaded texts, with the setting to change; "" if it does not."""
    calibration: NotRequired[dict[str, Any]]
    """Result of `parallel_core calibrate` on this worker: {device, model: {...}, global_batch, step_time}."""


Outcome = Literal["succeeded", "failed", "cancelled", "interrupted"]
"""interrupted = the yard was stopped in an orderly way: the run is queued again without using a retry."""

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
    "not_finite",
    "time_limit",
]


class Begins(TypedDict):
    """Where an attempt began: after `step` steps done by `attempt` (primary key) of `run`; `why` not after more of
    them, '' if it began as expected."""

    step: int
    run: int
    attempt: int
    why: str


class AttemptBody(TypedDict):
    """The state of an attempt: starting | running | ended. `begins` comes with running, the other fields with ended."""

    attempt: int
    state: Literal["starting", "running", "ended"]
    begins: NotRequired[Begins]  # with `running`
    outcome: NotRequired[Outcome]
    cause: NotRequired[Cause]
    detail: NotRequired[str]  # one sentence for users: "Rank 1 was killed by signal 9 at step 12 in 1F3."
    rank: NotRequired[int]
    signal: NotRequired[int]
    traceback: NotRequired[str]
    exits: NotRequired[dict[str, int]]  # rank -> exit code, negative = signal
    none_left: NotRequired[bool]  # every recorded process is known to have ended
    ran_s: NotRequired[float]  # seconds from `running` on, by a clock that nobody sets; absent after a restart
    peer: NotRequired[bool]  # it ended because ranks on another host had: their host reports why
    sizes: NotRequired[dict[str, int]]  # "<channel>:<rank>" -> final bytes of that file: what the cursor must reach


class ProfileBody(TypedDict):
    """The answer to the request `profile` (its id), with a `table` (profile.table.CostTable as JSON) or `error`."""

    profile: int
    table: NotRequired[dict[str, Any]]
    error: NotRequired[str]
    log: NotRequired[str]
    """With an error: the end of the profile's output."""


Channel = Literal["events", "log"]


class BatchBody(TypedDict):
    attempt: int
    rank: int
    channel: Channel
    start: int
    end: int
    omitted: NotRequired[int]
    """end - start - len(data), where that is not 0: below 0 if the record of what was dropped is the longer one."""


class ControlEntry(TypedDict):
    """What a worker is to do with `attempt`, which is the id of an attempt unless stated otherwise:

    - cancel: stop it, report cancelled.
    - end: stop it because it is over: ranks on another host have ended, or the worker had fallen silent. Its end and
      the rest of its data are sent.
    - fence: stop it, report nothing; what was not sent is deleted.
    - rewind: publish `channel`:`rank` again from `offset` on.
    - settled: everything has arrived, the folder may be deleted.
    - store: the first node's rendezvous store listens at `host` and `port`.
    - profile: measure the model of `spec` when nothing else runs; `attempt` is the id of the request.
    - cancel_profile: nobody waits for that request any more.
    - trace: let the ranks trace `step`, as `how` says (parallel_core.observe.trace_request.How).
    - drop: delete the checkpoints of a run that was deleted; `attempt` is the id of the run, and `identity` tells it
      from others of this id.
    - drop_text: delete the cached copy of the text `sha256`, which was deleted; `attempt` is 0.
    - up: report again that all its ranks have a process.
    - stuck: stop it because no rank moves on any of its hosts, and report where those here are.
    """

    kind: Literal[
        "cancel",
        "end",
        "fence",
        "rewind",
        "settled",
        "store",
        "profile",
        "cancel_profile",
        "trace",
        "drop",
        "drop_text",
        "up",
        "stuck",
    ]
    attempt: int
    spec: NotRequired[dict[str, Any]]
    rank: NotRequired[int]
    channel: NotRequired[Channel]
    offset: NotRequired[int]
    step: NotRequired[int]
    how: NotRequired[str]
    host: NotRequired[str]
    port: NotRequired[int]
    sha256: NotRequired[str]
    identity: NotRequired[RunIdentity]
