"""Failed sign-ins, counted in the database because all web processes share the count."""

from __future__ import annotations

from datetime import timedelta

from django.db import models, transaction
from django.utils import timezone


class Failures(models.Model):
    """The failed sign-ins from one address since `first_at`, with one name or with any. Those under way count as
    failed until they succeed."""

    key = models.CharField(max_length=64, primary_key=True)
    """sha256 of the address, or of address and name; hashed because somebody may have typed a password into the name
    field."""
    count = models.PositiveIntegerField(default=0)
    first_at = models.DateTimeField(default=timezone.now, db_index=True)

    def __str__(self) -> str:
        return f"{self.count} since {self.first_at}"

    @classmethod
    def add(cls, key: str, seconds: float) -> int:
        """Counts one more failure and returns the new number; of two at the same time each gets its own.

        Deletes the rows of any key whose first failure is more than `seconds` old.
        """
        with transaction.atomic():
            cls.objects.filter(first_at__lte=timezone.now() - timedelta(seconds=seconds)).delete()
            cls.objects.get_or_create(key=key)
            own = cls.objects.filter(key=key)
            own.update(count=models.F("count") + 1)  # locks the row until the end of the transaction
            return own.values_list("count", flat=True).first() or 1

    @classmethod
    def take_back(cls, key: str) -> None:
        """Counts one failure less; without any there is no row."""
        cls.objects.filter(key=key).update(count=models.F("count") - 1)
        cls.objects.filter(key=key, count__lte=0).delete()
