"""Runs and their events, and uploaded texts; attempts and their checkpoints are in `attempts`, what was measured in
`measured`.

State changes go only through `dashboard.runs.states`.
"""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.fleet.run_on import MAX_RUN_ON, RunOn
from dashboard.happened import Happened
from dashboard.runs.attempts import Attempt, Checkpoint
from dashboard.runs.measured import (
    Cursor,
    DeadLetter,
    LogChunk,
    MemoryRecord,
    OpenWaits,
    ProfilePart,
    RankInfo,
    SeriesChunk,
    SpanChunk,
)
from dashboard.runs.run_state import ACTIVE, ENDED, State
from dashboard.runs.tracing.thinned import Thinned
from dashboard.runs.waiting.deleted_starts import DeletedStart
from dashboard.runs.waiting.priority import Priority
from dashboard.uids import new_uid
from parallel_core.observe.trace_request import HOWS
from workers.contract import ResumeFrom

__all__ = [
    "ACTIVE",
    "ENDED",
    "Attempt",
    "Checkpoint",
    "Corpus",
    "Cursor",
    "DeadLetter",
    "DeletedStart",
    "Event",
    "LogChunk",
    "MemoryRecord",
    "OpenWaits",
    "ProfilePart",
    "RankInfo",
    "Run",
    "SeriesChunk",
    "SpanChunk",
    "State",
    "Thinned",
]

ARRIVES_WITHIN = timedelta(minutes=1)
"""Time after the end of a run by which all its data has arrived."""


class Run(models.Model):
    """One training run as users see it. The newest attempt does the work; this row holds the state of the run."""

    warnings: tuple[str, ...] = ()
    """What was warned of when it was checked, of one that has just been queued (`submission.prepare`); not stored."""

    name = models.CharField(max_length=120)
    uid = models.CharField(max_length=32, blank=True, default=new_uid, editable=False)
    """Tells it from a run to which another database, or a backup that is restored, gives the same number
    (workers.contract.RunIdentity); '' for runs that are older than this field."""
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="runs")
    study = models.ForeignKey("studies.Study", null=True, blank=True, on_delete=models.CASCADE, related_name="runs")
    position = models.IntegerField(default=0)
    """Order inside the study: its runs execute, and are drawn, in this order."""
    repeats = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="repeated_as")
    """The run of its study that this one repeats because it was disturbed: the first with this setting."""
    label = models.TextField(blank=True)
    """Short name of the strategy, e.g. 'PP-1F1B + AR' (parallel_core.plan.strategy.label), or of what the run does
    instead of training, e.g. 'Generate, TP 2' (earlier versions wrote 'Generate' alone)."""
    tags = models.JSONField(default=list, blank=True)
    notes = models.TextField(blank=True, default="")
    """What its owner writes on it, in plain text: what it is to show, what it showed."""
    spec = models.JSONField()
    devices = models.IntegerField(default=1)
    exclusive = models.BooleanField(default=False)
    """Needs hosts to itself: for runs of studies, so that no other run of ours disturbs the timing."""

    injected = models.JSONField(default=list, blank=True)
    """The faults injected on purpose, one sentence each (parallel_core.faults.sentences)."""

    state = models.CharField(max_length=12, choices=State.choices, default=State.QUEUED, db_index=True)
    cause = models.CharField(max_length=32, blank=True)
    detail = models.TextField(blank=True)
    """One sentence on how it ended, or why it was queued again."""
    host_count = models.PositiveSmallIntegerField(default=0)
    """The number of hosts over which its ranks are spread evenly; 0 = as few as it takes."""
    run_on = models.CharField(max_length=MAX_RUN_ON, blank=True, default="")
    """The devices that were chosen for it, as `RunOn` writes them; '' for any. Of a run of a study, the study's."""
    priority = models.SmallIntegerField(choices=Priority.choices, default=Priority.NORMAL)
    """How soon it is served while it is queued. Of a run of a study, the study's."""
    retries_left = models.IntegerField(default=0)
    resume_run = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="resumed_as")
    resume_step = models.IntegerField(null=True, blank=True)
    """The first attempt begins from `resume_run`'s checkpoint after `resume_step` steps. Both or neither are
    set when it is queued; a step without a run: the run has been deleted since."""
    based_on = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="variants")
    """The run whose spec this one changes, as it was queued by Clone, What if or Resume as."""
    task = models.JSONField(default=dict, blank=True)
    """What to do instead of training: the text to generate from that checkpoint
    (parallel_core.generation_request.TextRequest), or {"links": [two workers]} to time messages between them; {} for a
    run that trains."""
    needs_memory = models.BigIntegerField(null=True, blank=True)
    """Bytes that each of its devices is predicted to have to have; None: not predicted, or it was queued although it is
    predicted to fit nowhere, and is placed on any devices."""
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    trace_asked_at = models.DateTimeField(null=True, blank=True)
    """When somebody asked for a trace of the next step; `trace_step` is the step that the controller then chose."""
    trace_step = models.IntegerField(null=True, blank=True)
    trace_how = models.CharField(max_length=8, choices=[(how, how) for how in HOWS], default=HOWS[0])
    clocks = models.JSONField(default=dict, blank=True)
    """Number of an attempt -> worker -> [its first rank there, its ranks there, by how many seconds that host's clock
    was ahead of the broker's] (runs.tracing.host_clocks)."""

    created_at = models.DateTimeField(auto_now_add=True, db_index=True)
    queued_at = models.DateTimeField()
    first_started_at = models.DateTimeField(null=True, blank=True)
    """When the ranks of its first attempt that came so far were up."""
    started_at = models.DateTimeField(null=True, blank=True)
    """The same of its newest attempt; null until then, also while it is queued again."""
    ended_at = models.DateTimeField(null=True, blank=True)

    # Newest values, for lists: written with the points they come from.
    step = models.IntegerField(null=True, blank=True)  # counts from 0
    loss = models.FloatField(null=True, blank=True)
    held_out = models.FloatField(null=True, blank=True)  # loss of held-out samples
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
    def shares_hosts(self) -> bool:
        """Whether it belongs to a study whose runs go side by side, so that its times are not compared."""
        return self.study_id is not None and not self.exclusive

    @property
    def generates(self) -> bool:
        """Whether it generates text."""
        return "prompt" in self.task

    @property
    def resumes_from(self) -> ResumeFrom | None:
        """The checkpoint from which the run begins; None if it begins with step 0."""
        if self.resume_run_id is None or self.resume_step is None:
            return None
        return {"run": self.resume_run_id, "step": self.resume_step}

    @property
    def between(self) -> list[str]:
        """The two workers between which it times messages; [] for any other run."""
        return list(self.task.get("links", ()))

    @property
    def chosen_devices(self) -> RunOn:
        """The devices that were chosen for it."""
        return RunOn.stored(self.run_on)

    @property
    def priority_word(self) -> str:
        """Its priority in words; '' for a normal one."""
        return "" if self.priority == Priority.NORMAL else f"{Priority(self.priority).word} priority"

    @property
    def answered(self) -> bool:
        """Whether it is a run of a fit study that ran out of memory: that is its answer, so many layers do not fit."""
        return self.cause == "out_of_memory" and self.study is not None and self.study.kind == "fit"

    @property
    def at_rest(self) -> bool:
        """Whether it ended so long ago that all its data has arrived."""
        return self.state in ENDED and self.ended_at is not None and timezone.now() - self.ended_at > ARRIVES_WITHIN

    @property
    def steps_done(self) -> int:
        """Number of steps done: `step` counts from 0."""
        return 0 if self.step is None else self.step + 1

    @property
    def diverged(self) -> bool:
        """Whether the loss of its newest step is not finite: that is stored as None."""
        return self.step is not None and self.loss is None

    @property
    def look(self) -> str:
        """The look of its badge: its state, unless running out of memory was the answer it was to give."""
        return "answered" if self.answered else self.state

    @property
    def state_text(self) -> str:
        """The text of its badge."""
        return "Did not fit" if self.answered else self.get_state_display()


class Event(Happened):
    """What happened to a run, for its Events tab and for audits."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="events")
    attempt = models.ForeignKey(Attempt, null=True, on_delete=models.CASCADE)


class Corpus(models.Model):
    """An uploaded text, identified by the sha256 of its bytes. The file is corpora/<sha256> in the default storage."""

    sha256 = models.CharField(max_length=64, unique=True)
    name = models.CharField(max_length=120)
    size = models.BigIntegerField()
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="corpora")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "corpora"
