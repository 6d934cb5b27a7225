"""Starts of runs that have been deleted since."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class DeletedStart(models.Model):
    """A start of a run that has been deleted, one of the newest of those: it still decides whose turn it is."""

    attempt = models.BigIntegerField(primary_key=True)
    """Its attempt, which is no more; the larger, the later it was started."""
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False)
    queued_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"attempt {self.attempt} of a deleted run"
