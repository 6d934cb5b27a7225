"""Runs, their attempts, and the measurements that came back.

State changes go through `dashboard.runs.states` alone; measurements are written by `dashboard.control` alone.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models

from parallel_core.observe.asked import HOWS


class State(models.TextChoices):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


ACTIVE = (State.STARTING, State.RUNNING, State.CANCELLING)
ENDED = (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.LOST)


class Run(models.Model):
    """One training run as a person sees it. The newest attempt does the work; the row is the truth about it."""

    name = models.CharField(max_length=120)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="runs")
    study = models.ForeignKey("studies.Study", null=True, blank=True, on_delete=models.CASCADE, related_name="runs")
    position = models.IntegerField(default=0)
    """Order inside the study: its runs execute, and are drawn, in this order."""
    repeats = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="repeated_as")
    """The first run of its study with this setting, which was run again as it had been disturbed."""
    label = models.CharField(max_length=60, blank=True)
    """Short name of the strategy, e.g. 'PP-1F1B + AR' (parallel_core.plan.strategy.label)."""
    tags = models.JSONField(default=list, blank=True)
    spec = models.JSONField()
    devices = models.IntegerField(default=1)
    exclusive = models.BooleanField(default=False)
    """Needs a host to itself: study runs, so that nothing else of ours disturbs the timing."""

    broken = models.JSONField(default=list, blank=True)
    """The faults injected on purpose, a sentence each (parallel_core.faults.sentences)."""

    state = models.CharField(max_length=12, choices=State.choices, default=State.QUEUED, db_index=True)
    cause = models.CharField(max_length=32, blank=True)
    detail = models.TextField(blank=True)
    """One sentence on how it ended, or why it was queued again."""
    over_hosts = models.PositiveSmallIntegerField(default=0)
    """How many hosts its ranks are spread over evenly; 0 = as few as it takes."""
    retries_left = models.IntegerField(default=0)
    resume_run = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="resumed_as")
    resume_step = models.IntegerField(null=True, blank=True)
    """The checkpoint that the first attempt begins from: `resume_step` steps done by `resume_run`; both or none."""
    wish = models.JSONField(default=dict, blank=True)
    """What to do instead of training: the text to generate from that checkpoint (parallel_core.wish.TextWish), or
    {"links": [two workers]} to time messages between; {} of a run that trains."""
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    trace_asked_at = models.DateTimeField(null=True, blank=True)
    """When somebody asked to see the next step; `trace_step` is the one that the controller then chose."""
    trace_step = models.IntegerField(null=True, blank=True)
    trace_how = models.CharField(max_length=8, choices=[(how, how) for how in HOWS], default=HOWS[0])

    created_at = models.DateTimeField(auto_now_add=True, db_index=True)
    queued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    # Newest values, for lists: written with the points they come from.
    step = models.IntegerField(null=True, blank=True)
    loss = models.FloatField(null=True, blank=True)
    step_time = models.FloatField(null=True, blank=True)  # median of the timed steps so far, seconds
    tokens_per_s = models.FloatField(null=True, blank=True)
    memory_peak = models.BigIntegerField(null=True, blank=True)  # worst rank, bytes
    summary = models.JSONField(default=dict, blank=True)
    """At the end: {"timed": {...}, "cpu_others": x, "memory": {...}, "breakdown": {...}, "final_loss": x, ...}."""

    class Meta:
        ordering = ("-id",)
        indexes = [models.Index(fields=("state", "queued_at")), models.Index(fields=("study", "position"))]

    def __str__(self) -> str:
        return self.name

    @property
    def generates(self) -> bool:
        """Whether it makes text."""
        return "prompt" in self.wish

    @property
    def between(self) -> list[str]:
        """The two workers between which it times messages; [] of any other run."""
        return list(self.wish.get("links", ()))

    @property
    def answered(self) -> bool:
        """Whether it was a fit study's question whether so many layers fit, and its end is the answer: they do not."""
        return self.cause == "out_of_memory" and self.study is not None and self.study.kind == "fit"

    @property
    def look(self) -> str:
        """What its badge looks like: its state, but for an end that was no failure."""
        return "answered" if self.answered else self.state

    @property
    def state_text(self) -> str:
        """The word of its badge."""
        return "Did not fit" if self.answered else self.get_state_display()


class Attempt(models.Model):
    """One try at a run. `devices` = [{"worker": name, "devices": [indices], "first_rank": 0}, ...]."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts")
    number = models.IntegerField()
    worker = models.ForeignKey("fleet.Worker", null=True, on_delete=models.SET_NULL, related_name="attempts")
    worker_boot = models.CharField(max_length=64, blank=True)
    devices = models.JSONField(default=list)
    over = models.BooleanField(default=False, db_index=True)
    outcome = models.CharField(max_length=12, blank=True)
    cause = models.CharField(max_length=32, blank=True)
    detail = models.TextField(blank=True)
    report = models.JSONField(default=dict, blank=True)
    """The worker's AttemptBody at the end: exits, traceback, rank, signal; and `faults` {rank: fault frame}."""
    settled = models.BooleanField(default=False)
    """Every byte of every file arrived: the worker may delete the folder."""
    begins = models.JSONField(default=dict, blank=True)
    """Where it began (workers.contract.Begins), once it runs: {"step": 0, "why": ...} or the checkpoint it took up."""
    progress = models.JSONField(default=dict, blank=True)
    """rank -> {step, op, age} of the newest heartbeat."""
    lease_until = models.DateTimeField(null=True, blank=True)
    sent_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("number",)
        constraints = [models.UniqueConstraint(fields=("run", "number"), name="one_attempt_a_number")]


class Checkpoint(models.Model):
    """A complete checkpoint on a worker's disk, with `step` steps done. Rows go when the worker drops the files."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="checkpoints")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE)
    worker = models.CharField(max_length=120)
    step = models.IntegerField()
    bytes = models.BigIntegerField()
    seconds = models.FloatField()
    """Time to write it, beside training."""
    at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("step",)
        constraints = [models.UniqueConstraint(fields=("run", "worker", "step"), name="one_checkpoint_a_step")]


class Cursor(models.Model):
    """How far a file of an attempt's rank has arrived; moves in the transaction that stores what arrived."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="cursors")
    rank = models.IntegerField()
    channel = models.CharField(max_length=8)
    offset = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=("attempt", "rank", "channel"), name="one_cursor_a_file")]


class SeriesChunk(models.Model):
    """Up to 500 points of one series of one rank (dtype records.POINT), ordered by step. Full chunks are closed."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="chunks")
    rank = models.IntegerField()
    name = models.CharField(max_length=60)
    first_step = models.IntegerField()
    last_step = models.IntegerField()
    count = models.IntegerField()
    closed = models.BooleanField(default=False)
    data = models.BinaryField()

    class Meta:
        ordering = ("attempt", "rank", "name", "id")
        indexes = [models.Index(fields=("attempt", "name", "rank", "first_step"))]


class LogChunk(models.Model):
    """Bytes [start, end) of a rank's log."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="logs")
    rank = models.IntegerField()
    start = models.BigIntegerField()
    end = models.BigIntegerField()
    data = models.BinaryField()

    class Meta:
        ordering = ("attempt", "rank", "start")
        indexes = [models.Index(fields=("attempt", "rank", "start"))]


class SpanChunk(models.Model):
    """The spans of one rank in one traced step (dtype records.SPAN); `total` may be more than `count` rows kept."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="spans")
    rank = models.IntegerField()
    step = models.IntegerField()
    count = models.IntegerField()
    total = models.IntegerField()
    clock_within = models.BigIntegerField(null=True)
    """ns by which its times may be off those of rank 0; None on the host of rank 0, and where there is one host."""
    data = models.BinaryField()

    class Meta:
        ordering = ("attempt", "step", "rank")
        constraints = [models.UniqueConstraint(fields=("attempt", "step", "rank"), name="one_chunk_a_traced_step")]


class MemoryRecord(models.Model):
    """The metered step of one rank: the header of its `memory` frame, and the curve (dtype records.MEMORY)."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="memory")
    rank = models.IntegerField()
    step = models.IntegerField()
    peak_total = models.BigIntegerField()
    peak = models.JSONField(default=dict)
    final = models.JSONField(default=dict)
    rss_delta = models.BigIntegerField(default=0)
    curve = models.BinaryField(default=bytes)

    class Meta:
        ordering = ("attempt", "rank", "step")
        constraints = [models.UniqueConstraint(fields=("attempt", "step", "rank"), name="one_memory_a_step")]


class ProfilePart(models.Model):
    """Piece `part` of `of` of a file about a rank's step (`size` bytes); `of` = 0: it was too large to be kept.

    The file is torch.profiler's trace (gzipped Chrome trace), or a snapshot of the CUDA allocator's history
    (parallel_core.observe.snapshot).
    """

    class Kind(models.TextChoices):
        PROFILE = "profile"
        SNAPSHOT = "snapshot"

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="profiles")
    kind = models.CharField(max_length=8, choices=Kind.choices, default=Kind.PROFILE)
    rank = models.IntegerField()
    step = models.IntegerField()
    part = models.IntegerField()
    of = models.IntegerField()
    size = models.BigIntegerField()
    data = models.BinaryField()

    class Meta:
        ordering = ("attempt", "step", "rank", "part")
        constraints = [
            models.UniqueConstraint(fields=("attempt", "kind", "step", "rank", "part"), name="one_piece_a_file")
        ]


class RankInfo(models.Model):
    """The `hello` and `summary` frames of a rank, and what its `generated` frames told (analysis.generated)."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="ranks")
    rank = models.IntegerField()
    hello = models.JSONField(default=dict)
    summary = models.JSONField(default=dict)
    phase = models.CharField(max_length=16, blank=True)
    generated = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ("attempt", "rank")
        constraints = [models.UniqueConstraint(fields=("attempt", "rank"), name="one_info_a_rank")]


class Event(models.Model):
    """What happened to a run, in words, for its Events tab and for audits."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="events")
    attempt = models.ForeignKey(Attempt, null=True, on_delete=models.CASCADE)
    at = models.DateTimeField(auto_now_add=True)
    kind = models.CharField(max_length=32)
    text = models.TextField()
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL)

    class Meta:
        ordering = ("id",)


class Corpus(models.Model):
    """An uploaded text, named by the sha256 of its bytes. The file lies in the default storage as corpora/<sha256>."""

    sha256 = models.CharField(max_length=64, unique=True)
    name = models.CharField(max_length=120)
    size = models.BigIntegerField()
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="corpora")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "corpora"
