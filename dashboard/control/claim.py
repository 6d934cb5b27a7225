"""One yard has one broker: the controller claims it with the yard's id.

Controllers of two yards would each read half of what workers send, and end every attempt of the other yard as one that
they do not know. The id is a row of the database, so a yard that is restored from its backup has the same. The key of
the claim is removed with the broker's data only.
"""

from __future__ import annotations

import time

import redis
from django.conf import settings

from dashboard.fleet.models import Yard
from workers.contract import YARD
from workers.settings import address_of

CLAIM_EVERY_S = 2.0
"""Interval at which a controller looks whether the broker is still its yard's: another one may take it over."""


class Claimed(Exception):
    """The broker is another yard's; the text says what to change."""


class Claim:
    """The claim of this database's yard on the broker. That it was refused is kept in the database, for the pages."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._held_at = float("-inf")

    def hold(self) -> None:
        """Claims the broker if nobody has; looks at it at most every CLAIM_EVERY_S. Raises Claimed if it is another
        yard's, and redis.RedisError."""
        if time.monotonic() - self._held_at < CLAIM_EVERY_S:
            return
        own = yard_uid()
        if not self._redis.set(YARD, own, nx=True) and (other := self._holder()) != own:
            said = _words(other, own)
            Yard.objects.update(refused=said)
            raise Claimed(said)
        if self._held_at < 0:
            Yard.objects.exclude(refused="").update(refused="")
        self._held_at = time.monotonic()

    def forget(self) -> None:
        """Makes the next `hold` look: the broker was away, and may be another one or empty now."""
        self._held_at = float("-inf")

    def take_over(self) -> str:
        """Makes the broker this yard's, whoever had it; returns a sentence about that. Raises redis.RedisError."""
        before, own = self._holder(), yard_uid()
        self._redis.set(YARD, own)
        Yard.objects.update(refused="")
        whose = f", which was that of yard {before}," if before not in ("", own) else ""
        return f"The broker at {address_of(settings.REDIS_URL)}{whose} is this yard's now."

    def _holder(self) -> str:
        found = self._redis.get(YARD)
        return found.decode(errors="replace") if isinstance(found, bytes) else ""


def yard_uid() -> str:
    """The id of this database's yard, drawn at the first call."""
    return Yard.objects.get_or_create(pk=1)[0].uid


def _words(other: str, own: str) -> str:
    """Short, as `./run` prints no more than the last 300 characters that a process said."""
    return (
        f"The broker at {address_of(settings.REDIS_URL)} is that of another yard ({other}; this one is {own}). Give "
        "this one another: REDIS_URL, or TRAINYARD_REDIS_URL for ./run. If it replaces the other one, stop that, then: "
        "controller --take-over (docs/deploy.md)."
    )
