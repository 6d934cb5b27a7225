"""API tokens for scripts and for workers on other hosts, and keys of requests that must not be done twice."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import make_password
from django.db import models
from django.utils import timezone

PREFIX = "ty_"
WORKER_USER = "worker-service"
"""Owner of the tokens of workers. It has no password, so nobody can sign in with it."""
MOST_OF_A_KEY = 120
"""Characters."""


def digest(secret: str) -> str:
    """The hash of a token that is stored. Plain SHA-256 is enough, as the secret has 256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Scope(models.TextChoices):
    READ = "read", "Read: list and fetch"
    SUBMIT = "submit", "Submit: read, submit, cancel and delete what is yours"
    WORKER = "worker", "Worker: fetch corpora"


def worker_user() -> Any:
    """The account that owns the tokens of workers, made on first use."""
    return get_user_model().objects.get_or_create(username=WORKER_USER, defaults={"password": make_password(None)})[0]


class ApiToken(models.Model):
    """A bearer token. Its secret is shown once; only its hash and its first characters, to recognise it, are stored.

    A worker's belongs to WORKER_USER: the host goes on when the admin who made it leaves.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=60)
    scope = models.CharField(max_length=8, choices=Scope.choices, default=Scope.READ)
    start = models.CharField(max_length=12)
    hashed = models.CharField(max_length=64, unique=True)
    expires_at = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)
    made_by = models.CharField(max_length=150, blank=True)
    """Of a worker's token: the name that its maker had then; '' for the one that the deployment sets."""

    class Meta:
        ordering = ("-id",)
        verbose_name = "API token"

    def __str__(self) -> str:
        return f"{self.name} ({self.start}…)"

    @property
    def expired(self) -> bool:
        return self.expires_at <= timezone.now()

    @classmethod
    def make(cls, *, user: Any, name: str, scope: str, expires_at: datetime) -> tuple[ApiToken, str]:
        """Creates a token that `user` asked for; returns it and its secret, which cannot be read again."""
        secret = PREFIX + secrets.token_urlsafe(32)
        owned = {"user": user}
        if scope == Scope.WORKER:
            owned = {"user": worker_user(), "made_by": user.get_username()}
        token = cls.objects.create(
            **owned, name=name, scope=scope, start=secret[:9], hashed=digest(secret), expires_at=expires_at
        )
        return token, secret

    @classmethod
    def revocable(cls, user: Any) -> models.QuerySet[ApiToken]:
        """Tokens that `user` may list and revoke: their own; an admin also those that any admin made for a worker."""
        own = models.Q(user=user)
        return cls.objects.filter(
            own | (models.Q(scope=Scope.WORKER) & ~models.Q(made_by="")) if user.is_staff else own
        )

    @classmethod
    def find(cls, secret: str) -> ApiToken | None:
        """The unexpired token that has this secret, of an active user or of a worker; None if there is none."""
        found = cls.objects.select_related("user").filter(hashed=digest(secret), expires_at__gt=timezone.now())
        return found.filter(models.Q(user__is_active=True) | models.Q(user__username=WORKER_USER)).first()


class IdempotencyKey(models.Model):
    """A key that a client sent with a request, and what the request made (see `dashboard.api.idempotency`)."""

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=MOST_OF_A_KEY)
    asked = models.CharField(max_length=64)
    """sha256 of method, path and body."""
    made = models.BigIntegerField()
    """The number of the run, study or trace: the path says which."""
    at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=("owner", "key"), name="one_request_a_key")]

    def __str__(self) -> str:
        return self.key
