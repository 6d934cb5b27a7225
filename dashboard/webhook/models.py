"""Where the yard posts that a run or a study has ended, and what has still to be posted."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.db import models
from django.utils import timezone

MAX_URL = 500


def check_url(url: str) -> None:
    """Raises ValidationError unless this is an http or https URL with a host, a valid port, and no user."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known or not url.isascii() or any(letter.isspace() or not letter.isprintable() for letter in url):
        raise ValidationError("Use an address that begins with http:// or https://, with letters of ASCII only.")
    if parts.username is not None or parts.password is not None:
        raise ValidationError("Use an address without user and password; put a secret into its path or query.")


class Webhook(models.Model):
    """The one webhook of the yard; without a row, or with an empty `url`, nothing is posted."""

    url = models.CharField("URL", max_length=MAX_URL, blank=True, validators=[check_url])
    origin = models.CharField(max_length=MAX_URL, blank=True, default="", editable=False)
    """Address of this yard in the links that are posted, as the admin who set the URL saw it: `https://yard.org`."""
    result = models.CharField("last result", max_length=300, blank=True, default="", editable=False)
    result_at = models.DateTimeField("at", null=True, blank=True, editable=False)

    def __str__(self) -> str:
        return "Webhook"

    @classmethod
    def in_use(cls) -> Webhook | None:
        """The webhook, if there is one with a URL."""
        return cls.objects.exclude(url="").order_by("pk").first()

    def note(self, result: str) -> None:
        """Stores the result of a post, a sentence, in the newest version of the row."""
        Webhook.objects.filter(pk=self.pk).update(result=result[:300], result_at=timezone.now())


class Delivery(models.Model):
    """An end that has to be posted: that of `run`, or of `study`. Deleted once it was, or was tried in vain."""

    run = models.ForeignKey("runs.Run", null=True, on_delete=models.CASCADE, related_name="+")
    study = models.ForeignKey("studies.Study", null=True, on_delete=models.CASCADE, related_name="+")
    ended_at = models.DateTimeField(default=timezone.now)
    due_at = models.DateTimeField(default=timezone.now, db_index=True)
    tries = models.PositiveSmallIntegerField(default=0)

    def __str__(self) -> str:
        return f"run {self.run_id}" if self.run_id else f"study {self.study_id}"
