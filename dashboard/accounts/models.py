"""Failed sign-ins, counted for all web processes together."""

from __future__ import annotations

from datetime import timedelta

from django.db import models, transaction
from django.utils import timezone


class Failures(models.Model):
    """Those of one name from one address, from the first of them on."""

    key = models.CharField(max_length=64, primary_key=True)
    """sha256 of both: what somebody typed may be a password in the wrong field."""
    count = models.PositiveIntegerField(default=0)
    first_at = models.DateTimeField(default=timezone.now, db_index=True)

    def __str__(self) -> str:
        return f"{self.count} since {self.first_at}"

    @classmethod
    def known(cls, key: str, seconds: float) -> int:
        """How many there were, if the first was no more than so many seconds ago."""
        recent = cls.objects.filter(key=key, first_at__gt=timezone.now() - timedelta(seconds=seconds))
        return recent.values_list("count", flat=True).first() or 0

    @classmethod
    def add(cls, key: str, seconds: float) -> None:
        """One more; those whose first is longer ago are forgotten, whoever's they are."""
        with transaction.atomic():
            cls.objects.filter(first_at__lte=timezone.now() - timedelta(seconds=seconds)).delete()
            cls.objects.get_or_create(key=key)
            cls.objects.filter(key=key).update(count=models.F("count") + 1)
