"""Searches that take too long for a request. Each question is searched once; asking again returns the kept answer."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class SearchState(models.TextChoices):
    QUEUED = "queued", "queued"
    RUNNING = "running", "running"
    DONE = "succeeded", "answered"
    REFUSED = "refused", "has no answer"
    FAILED = "failed", "failed"


WAITING = (SearchState.QUEUED, SearchState.RUNNING)


class Search(models.Model):
    """One question of one kind of parallel_core.searches. Web processes write it; only the analyst answers it."""

    kind = models.CharField(max_length=20)
    key = models.CharField(max_length=64, unique=True)
    """SHA-256 of the kind, what the question is about, and the engine's source (services.ask)."""
    question = models.JSONField()
    """The engine's input; {} once the search is answered or refused."""
    state = models.CharField(max_length=12, choices=SearchState.choices, default=SearchState.QUEUED, db_index=True)
    answer = models.JSONField(null=True, blank=True)
    detail = models.TextField(blank=True)
    """Why there is no answer."""
    done = models.IntegerField(default=0)
    of = models.IntegerField(default=0)
    """Number of parts of the search, of which `done` are done; 0 while unknown."""
    tries = models.IntegerField(default=0)
    asker = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    """The user whose limit of waiting searches it counts against, and who may stop it; None for kinds without a limit
    (services.ask), which any member may stop."""
    asked_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        verbose_name_plural = "searches"

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}: {self.state}"

    @property
    def owner_id(self) -> int | None:
        """Who may stop it, for `roles.may_change`."""
        return self.asker_id

    @property
    def waiting(self) -> bool:
        return self.state in WAITING

    @property
    def part_done(self) -> int:
        """Parts done, in per cent."""
        return min(100, 100 * self.done // self.of) if self.of else 0
