"""One yard has one broker: the controller claims it with the yard's id.

Controllers of two yards would each read half of what workers send, and end every attempt of the other yard as one that
they do not know. The id is a row of the database, so a yard that is restored from its backup has the same. The key of
the claim is removed with the broker's data only.

A copy of a yard has its id, too. So a controller also says where its database is, for as long as it is at work: one
with another database leaves the broker to it meanwhile.
"""

from __future__ import annotations

import time
from typing import NoReturn

import redis
from django.conf import settings

from dashboard.control.lock import place_of_database
from dashboard.fleet.models import Yard
from workers.contract import YARD, YARD_AT
from workers.settings import address_of

CLAIM_EVERY_S = 2.0
"""Interval at which a controller looks whether the broker is still its yard's: another one may take it over."""
MOST_SHOWN = 60
"""Characters of a place that are shown, its last ones."""
AT_WORK_S = 10
"""How long a controller counts as at work after it was last heard; one that is moved starts at most so much later."""


class Claimed(Exception):
    """The broker is another yard's; the text says what to change."""


class Claim:
    """The claim of this database's yard on the broker. That it was refused is kept in the database, for the pages."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._held_at = float("-inf")
        self._here = ""

    def hold(self) -> None:
        """Claims the broker if nobody has; looks at it at most every CLAIM_EVERY_S. Raises Claimed if it is another
        yard's, and redis.RedisError."""
        if time.monotonic() - self._held_at < CLAIM_EVERY_S:
            return
        own = yard_uid()
        if not self._redis.set(YARD, own, nx=True) and (other := self._get(YARD)) != own:
            self._refuse(_words(other, own))
        self._here = here = self._here or place_of_database()  # once: host names change with the network
        if not self._redis.set(YARD_AT, here, nx=True, ex=AT_WORK_S):
            if (other := self._get(YARD_AT)) not in ("", here):
                self._refuse(_copy_words(other, here))
            self._redis.set(YARD_AT, here, ex=AT_WORK_S)
        if self._held_at < 0:
            Yard.objects.exclude(refused="").update(refused="")
        self._held_at = time.monotonic()

    def _refuse(self, said: str) -> NoReturn:
        Yard.objects.update(refused=said)
        raise Claimed(said)

    def forget(self) -> None:
        """Makes the next `hold` look: the broker was away, and may be another one or empty now."""
        self._held_at = float("-inf")

    def take_over(self) -> str:
        """Makes the broker this yard's, whoever had it; returns a sentence about that. Raises redis.RedisError."""
        before, own = self._get(YARD), yard_uid()
        self._redis.set(YARD, own)
        self._redis.set(YARD_AT, place_of_database(), ex=AT_WORK_S)
        Yard.objects.update(refused="")
        whose = f", which was that of yard {before}," if before not in ("", own) else ""
        return f"The broker at {address_of(settings.REDIS_URL)}{whose} is this yard's now."

    def _get(self, key: str) -> str:
        found = self._redis.get(key)
        return found.decode(errors="replace") if isinstance(found, bytes) else ""


def yard_uid() -> str:
    """The id of this database's yard, drawn at the first call."""
    return Yard.objects.get_or_create(pk=1)[0].uid


def _copy_words(other: str, here: str) -> str:
    """As short as `_words`: places are cut."""
    return (
        f"The broker at {address_of(settings.REDIS_URL)} is used by a copy of this yard, whose database is "
        f"{other[-MOST_SHOWN:]}; this one's is {here[-MOST_SHOWN:]}. Stop one of them, or give it another broker "
        "(docs/deploy.md)."
    )


def _words(other: str, own: str) -> str:
    """Short, as `./run` prints no more than the last 300 characters that a process said."""
    return (
        f"The broker at {address_of(settings.REDIS_URL)} is that of another yard ({other}; this one is {own}). Give "
        "this one another: REDIS_URL, or TRAINYARD_REDIS_URL for ./run. If it replaces the other one, stop that, then: "
        "controller --take-over (docs/deploy.md)."
    )
