"""The attempts of runs, and the checkpoints that they saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import models

from dashboard.runs.run_state import ended_as
from parallel_core.analysis.quantities import listed_text


class Attempts(models.Manager["Attempt"]):
    """The attempts of runs that are there. Those of deleted runs are only in `Attempt.every`, until their measurements
    are deleted."""

    def get_queryset(self) -> models.QuerySet[Attempt]:
        return super().get_queryset().filter(deleted=False)


def cascade_unless_deleted(collector: Any, field: Any, attempts: models.QuerySet[Attempt], using: str) -> None:
    """Deletes with a run the attempts that are not marked as `deleted`: those stay until what they measured is gone."""
    models.CASCADE(collector, field, attempts.filter(deleted=False), using)


def devices_text(nodes: Sequence[Mapping[str, Any]]) -> str:
    """The `devices` of an attempt: `yard-a, devices 0 and 1`; of several hosts `yard-a (device 0) and yard-b (device
    0)`."""
    places = [(node["worker"], _indices_text(node["devices"])) for node in nodes]
    if len(places) == 1:
        return ", ".join(places[0])
    return listed_text([f"{worker} ({devices})" for worker, devices in places])


def _indices_text(indices: Sequence[int]) -> str:
    return f"device{'s' * (len(indices) > 1)} {listed_text([str(i) for i in indices])}"


class Attempt(models.Model):
    """One try at a run. `devices` = [{"worker": name, "devices": [indices], "first_rank": 0}, ...]."""

    # Without a constraint, because the run of a deleted attempt is no more.
    run = models.ForeignKey("runs.Run", on_delete=cascade_unless_deleted, db_constraint=False, related_name="attempts")
    deleted = models.BooleanField(default=False)
    """Its run has been deleted: what was measured follows bit by bit (control.tidying)."""
    number = models.IntegerField()
    worker = models.ForeignKey("fleet.Worker", null=True, on_delete=models.SET_NULL, related_name="attempts")
    worker_boot = models.CharField(max_length=64, blank=True)
    devices = models.JSONField(default=list)
    over = models.BooleanField(default=False)
    outcome = models.CharField(max_length=12, blank=True)
    cause = models.CharField(max_length=32, blank=True)
    detail = models.TextField(blank=True)
    report = models.JSONField(default=dict, blank=True)
    """What workers have reported so far. On one host, its AttemptBody at the end (exits, traceback, rank, signal); over
    several also `store`, `up` and `ends`, during the attempt (control.multi_host). `faults` = {rank: fault frame}."""
    settled = models.BooleanField(default=False)
    """Every byte of every file has arrived: the workers may delete its folders."""
    begins = models.JSONField(default=dict, blank=True)
    """Where it began (workers.contract.Begins), once it runs: {"step": 0, "why": ...} or the checkpoint it resumed
    from."""
    progress = models.JSONField(default=dict, blank=True)
    """rank -> {step, op, age} in the newest heartbeat."""
    lease_until = models.DateTimeField(null=True, blank=True)
    sent_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    objects = Attempts()
    every = models.Manager["Attempt"]()

    class Meta:
        ordering = ("number",)
        constraints = [models.UniqueConstraint(fields=("run", "number"), name="one_attempt_a_number")]
        # Partial ones, because SQLite uses no index of a truth value for `NOT over`.
        indexes = [
            models.Index(fields=("ended_at",), name="attempts_by_end"),
            models.Index(fields=("run",), name="attempts_under_way", condition=models.Q(over=False)),
            models.Index(fields=("id",), name="attempts_deleted", condition=models.Q(deleted=True)),
            models.Index(
                fields=("ended_at",), name="attempts_not_settled", condition=models.Q(over=True, settled=False)
            ),
        ]

    @property
    def look(self) -> str:
        """The look of its badge: how it ended (of a run that was retried, each attempt in its own way), or the state of
        its run until then."""
        if not self.over or (self.run.answered and self.cause == self.run.cause):
            return self.run.look
        return ended_as(self.outcome, self.cause) or self.run.look

    @property
    def state_text(self) -> str:
        """The text of its badge."""
        return self.run.state_text if self.look == self.run.look else self.look.capitalize()


class Checkpoint(models.Model):
    """A complete checkpoint on a worker's disk, after `step` steps. The row is deleted when the worker deletes the
    files."""

    run = models.ForeignKey("runs.Run", on_delete=models.CASCADE, related_name="checkpoints")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE)
    worker = models.CharField(max_length=120)
    step = models.IntegerField()
    bytes = models.BigIntegerField()
    seconds = models.FloatField()
    """Time to write it, in parallel to training."""
    blocked = models.FloatField(default=0.0)
    """Seconds for which training stood still: until the one before was written, and while the state was copied."""
    held_out = models.FloatField(null=True)
    """The held-out loss after exactly these steps; null where it was not evaluated then."""
    at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("step",)
        constraints = [models.UniqueConstraint(fields=("run", "worker", "step"), name="one_checkpoint_a_step")]
