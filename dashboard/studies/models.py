"""Studies: runs that differ in a known way, executed one after another so that they can be compared fairly, or side by
side where only their losses are compared."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Self

from django.conf import settings
from django.db import models

from dashboard.fleet.run_on import MAX_RUN_ON, RunOn
from dashboard.happened import Happened
from dashboard.runs.waiting.priority import Priority


class Study(models.Model):
    """`kind` is one of `kinds.KINDS`, or says how else the study was created: starter, postmortem. `settings` has the
    values of its form, so that it can be cloned."""

    warnings: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    """What was warned of one that has just been created: sentences by the run's name, by kind; not stored."""

    name = models.CharField(max_length=120)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="studies")
    kind = models.CharField(max_length=32, default="matrix")
    base = models.JSONField(default=dict)
    """The part of the RunSpec (as a dict) that all runs share."""
    settings = models.JSONField(default=dict)
    run_on = models.CharField(max_length=MAX_RUN_ON, blank=True, default="")
    priority = models.SmallIntegerField(choices=Priority.choices, default=Priority.NORMAL)
    """The devices that were chosen for its runs, as `RunOn` writes them, and how soon these are served."""
    baseline = models.ForeignKey("runs.Run", null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    notes = models.TextField(blank=True, default="")
    """What its owner writes on it, in plain text: a question, a finding."""
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-id",)
        verbose_name_plural = "studies"

    def __str__(self) -> str:
        return self.name

    @classmethod
    def locked(cls, pk: int) -> Self | None:
        """The study as it is now, locked until the caller's transaction ends; None if it has been deleted."""
        return cls.objects.select_for_update().filter(pk=pk).first()

    @property
    def history(self) -> models.QuerySet[StudyEvent]:
        """What was changed of it, with who did that."""
        return self.events.select_related("actor")

    @property
    def chosen_devices(self) -> RunOn:
        """The devices that were chosen for its runs."""
        return RunOn.stored(self.run_on)

    @property
    def priority_name(self) -> str:
        """`low`, `normal` or `high`."""
        return Priority(self.priority).word

    @property
    def shared_cores(self) -> int:
        """Number of cores that all devices of the fleet shared when it was created; 0 if each had its own."""
        return int(self.settings.get("cores", 0))

    @property
    def side_by_side(self) -> bool:
        """Whether its runs share hosts with each other and with other runs, so that their times are not compared."""
        return bool(self.settings.get("side_by_side"))

    @property
    def at_rest(self) -> bool:
        """Whether nothing of it changes any more, unless somebody adds or repeats a run."""
        return all(run.at_rest for run in self.runs.all())


class StudyEvent(Happened):
    """What somebody changed of a study. What happens to its runs is among the events of each."""

    study = models.ForeignKey(Study, on_delete=models.CASCADE, related_name="events")


class Once(models.Model):
    """Something that happened in this yard and must not happen again, whatever has been deleted since; one row for each
    `what`."""

    STARTER = "starter study"
    """That the first study was queued, or was never needed."""

    what = models.CharField(max_length=32, unique=True)
    at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.what
