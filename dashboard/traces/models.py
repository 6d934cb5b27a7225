"""Traces of jobs that did not run in this yard. The analyst reads the files, keeps its results, deletes the files."""

from __future__ import annotations

from functools import cached_property

from django.conf import settings
from django.db import models
from pydantic import ValidationError

from parallel_core.faults import sentences, trained
from parallel_core.spec import RunSpec


class TraceState(models.TextChoices):
    QUEUED = "queued", "queued"
    READING = "running", "reading"
    READY = "succeeded", "ready"
    FAILED = "failed", "failed"


class Trace(models.Model):
    """The trace of one job, one file a rank. `read` of `size` bytes have been processed while it is being read."""

    name = models.CharField(max_length=120)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="traces")
    created_at = models.DateTimeField(auto_now_add=True)
    state = models.CharField(max_length=12, choices=TraceState.choices, default=TraceState.QUEUED, db_index=True)
    detail = models.TextField(blank=True)
    """Why it failed."""
    tries = models.IntegerField(default=0)
    size = models.BigIntegerField(default=0)
    read = models.BigIntegerField(default=0)
    notes = models.JSONField(default=list, blank=True)
    """Sentences on what is missing in it and what was done about it."""
    ranks = models.JSONField(default=dict, blank=True)
    """rank -> {file, files, device, raw, top, counted, partial, world, steps} (parallel_core.traces report)."""
    recorded = models.JSONField(default=dict, blank=True)
    """For steps exported by a yard: {spec: that of the run or None, run: its name there, spans: {step: how many were
    recorded}}; {} for a trace of torch.profiler."""

    class Meta:
        ordering = ("-id",)

    def __str__(self) -> str:
        return self.name

    @property
    def steps(self) -> list[int]:
        """Steps that any rank has, ascending."""
        return sorted({int(step) for rank in self.ranks.values() for step in rank["steps"]})

    @cached_property
    def spec(self) -> RunSpec | None:
        """The spec of the run that recorded these spans; None unless it was exported with them and can be read."""
        try:
            return RunSpec.stored(given) if (given := self.recorded.get("spec")) else None
        except ValidationError:
            return None

    @cached_property
    def trained(self) -> RunSpec | None:
        """The spec that was trained, with what injected faults change in `spec`."""
        return trained(self.spec) if self.spec else None

    @property
    def injected(self) -> list[str]:
        """The faults that its run injected on purpose, one sentence each, as `Run.injected`."""
        return sentences(self.spec.inject) if self.spec else []

    def counted(self, step: int) -> bool:
        """Whether stages and micro-batches of the step were inferred from messages and order, not from annotations."""
        return any(step in rank.get("counted", ()) for rank in self.ranks.values())

    @property
    def part_read(self) -> int:
        """Percent of the bytes that have been read."""
        return min(100, 100 * self.read // self.size) if self.size else 0


class TraceFile(models.Model):
    """An uploaded file, until it has been read; `stored` is its name in the default storage."""

    trace = models.ForeignKey(Trace, on_delete=models.CASCADE, related_name="files")
    name = models.CharField(max_length=200)
    size = models.BigIntegerField()
    stored = models.CharField(max_length=200)

    class Meta:
        ordering = ("id",)


class TraceSpans(models.Model):
    """The spans of one rank in one step (dtype records.SPAN)."""

    trace = models.ForeignKey(Trace, on_delete=models.CASCADE, related_name="spans")
    rank = models.IntegerField()
    step = models.IntegerField()
    count = models.IntegerField()
    data = models.BinaryField()
    names = models.JSONField(default=dict, blank=True)
    """operators, kernels -> their names, in order (at most parallel_core.traces.kineto.SEQUENCE of each); begun -> how
    many there are in all; groups -> the process group of each collective, by start."""

    class Meta:
        ordering = ("step", "rank")
        constraints = [models.UniqueConstraint(fields=("trace", "step", "rank"), name="one_table_a_step_of_a_rank")]
