"""What happened to something, in words, and who did it: the base of the events of runs and of studies."""

from __future__ import annotations

from django.conf import settings
from django.db import models


class Happened(models.Model):
    """One thing that happened; `kind` tells alike ones apart, the oldest come first."""

    at = models.DateTimeField(auto_now_add=True)
    kind = models.CharField(max_length=32)
    text = models.TextField()
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL)

    class Meta:
        abstract = True
        ordering = ("id",)
