"""Runs, their attempts, and what happened to them; the measurements that came back are of `measured`.

State changes go through `dashboard.runs.states` alone.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models

from dashboard.runs.measured import Cursor, LogChunk, MemoryRecord, ProfilePart, RankInfo, SeriesChunk, SpanChunk
from parallel_core.observe.trace_request import HOWS

__all__ = [
    "ACTIVE",
    "ENDED",
    "Attempt",
    "Checkpoint",
    "Corpus",
    "Cursor",
    "Event",
    "LogChunk",
    "MemoryRecord",
    "ProfilePart",
    "RankInfo",
    "Run",
    "SeriesChunk",
    "SpanChunk",
    "State",
]


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
    label = models.TextField(blank=True)
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
    """What to do instead of training: the text to generate from that checkpoint
    (parallel_core.generation_request.TextRequest), or {"links": [two workers]} to time messages between; {} of a run
    that trains."""
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
    def diverged(self) -> bool:
        """Whether the loss of its newest step is not finite: a row keeps no such number."""
        return self.step is not None and self.loss is None

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
