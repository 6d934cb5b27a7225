"""Searches that take longer than a page may. Each question is asked once; who asks it again gets the kept answer."""

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
    """One question of a kind of parallel_core.searches. The web writes it, the analyst alone answers it."""

    kind = models.CharField(max_length=20)
    key = models.CharField(max_length=64, unique=True)
    """sha256 of the kind, what it is about, and the engine's own source (services.ask)."""
    question = models.JSONField()
    """What the engine is given; {} once it is answered."""
    state = models.CharField(max_length=12, choices=SearchState.choices, default=SearchState.QUEUED, db_index=True)
    answer = models.JSONField(null=True, blank=True)
    detail = models.TextField(blank=True)
    """Why there is no answer."""
    done = models.IntegerField(default=0)
    of = models.IntegerField(default=0)
    """Parts of it, 0 while nobody knows."""
    tries = models.IntegerField(default=0)
    asker = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    """Whose it is, of whom only a few wait at once; None where it may be anybody's (services.ask)."""
    asked_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-id",)
        verbose_name_plural = "searches"

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}: {self.state}"

    @property
    def waiting(self) -> bool:
        return self.state in WAITING

    @property
    def part_done(self) -> int:
        """Per cent of its parts."""
        return min(100, 100 * self.done // self.of) if self.of else 0
