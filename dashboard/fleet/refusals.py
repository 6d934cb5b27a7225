"""Workers that Redis turned away: they cannot say so themselves, but its own log of refusals names them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import redis
from django.conf import settings
from django.utils import timezone

from dashboard.control.wire import connect
from dashboard.fleet.models import Worker

log = logging.getLogger(__name__)

LATELY = timedelta(hours=1)
MOST = 8
"""Refusals that the page shows, the newest first."""


@dataclass(frozen=True)
class Refusal:
    """`user` of Redis, from the host `address`, was last refused `at`; `key` = what it may not reach, '' where its name
    or password was wrong."""

    user: str
    address: str
    at: datetime
    key: str

    @property
    def setting(self) -> str:
        """What has to be changed there, as a sentence."""
        if self.key:
            return (
                f"It may not reach {self.key}: TRAINYARD_WORKER_NAME there must be the name in its line of users.conf."
            )
        return "The user or the password in REDIS_URL there is wrong, or users.conf has no line for it."


def lately() -> list[Refusal]:
    """Nothing where Redis is away or keeps no such log."""
    try:
        with connect(settings.REDIS_URL) as client:
            found = [_refusal(entry) for entry in client.acl_log() if str(entry["reason"]) in {"auth", "key"}]
    except (redis.RedisError, KeyError, ValueError) as error:
        log.warning("no refusals of Redis: %s", error)
        return []
    since = timezone.now() - LATELY
    heard = {name: at or since for name, at in Worker.objects.values_list("name", "heartbeat_at")}
    stand = [one for one in found if one.at > since and (one.key or heard.get(one.user, since) < one.at)]
    return sorted(stand, key=lambda one: one.at, reverse=True)[:MOST]


def _refusal(entry: Mapping[str, Any]) -> Refusal:
    address = str(entry["client-info"]["addr"]).rpartition(":")[0]
    address = "this host" if "/" in address else address  # it came through the socket here
    at = timezone.now() - timedelta(seconds=float(entry["age-seconds"]))
    return Refusal(str(entry["username"]), address, at, str(entry["object"]) if entry["reason"] == "key" else "")
