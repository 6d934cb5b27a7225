"""Failed sign-ins, counted in the database because all web processes share the count."""

from __future__ import annotations

from datetime import timedelta

from django.db import models, transaction
from django.utils import timezone


class Failures(models.Model):
    """The failed sign-ins with one name from one address since `first_at`."""

    key = models.CharField(max_length=64, primary_key=True)
    """sha256 of address and name; hashed because somebody may have typed a password into the name field."""
    count = models.PositiveIntegerField(default=0)
    first_at = models.DateTimeField(default=timezone.now, db_index=True)

    def __str__(self) -> str:
        return f"{self.count} since {self.first_at}"

    @classmethod
    def known(cls, key: str, seconds: float) -> int:
        """Returns the number of failures, or 0 if the first of them is more than `seconds` old."""
        recent = cls.objects.filter(key=key, first_at__gt=timezone.now() - timedelta(seconds=seconds))
        return recent.values_list("count", flat=True).first() or 0

    @classmethod
    def add(cls, key: str, seconds: float) -> None:
        """Counts one more failure, and deletes the rows of any key whose first failure is more than `seconds` old."""
        with transaction.atomic():
            cls.objects.filter(first_at__lte=timezone.now() - timedelta(seconds=seconds)).delete()
            cls.objects.get_or_create(key=key)
            cls.objects.filter(key=key).update(count=models.F("count") + 1)
