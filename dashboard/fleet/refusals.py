"""Workers that Redis refused: they cannot report it themselves, but the ACL log of Redis names them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import redis
from django.conf import settings
from django.utils import timezone

from dashboard import one_clock
from dashboard.control.wire import ANSWER_LIMIT_S
from dashboard.fleet.models import Worker
from workers.wire import connect

log = logging.getLogger(__name__)

LATELY = timedelta(hours=1)
MOST = 8
"""The most refusals that the page shows, newest first."""


@dataclass(frozen=True)
class Refusal:
    """A refusal of the Redis user `user` from host `address`, the last of its kind `at`.

    `key` = the key that it may not access; '' if its name or password was wrong.
    """

    user: str
    address: str
    at: datetime
    key: str

    @property
    def setting(self) -> str:
        """What has to be changed on that host, as a sentence."""
        if self.key:
            return (
                f"It may not reach {self.key}: TRAINYARD_WORKER_NAME there must be the name in its line of users.conf."
            )
        return (
            "The user or the password in REDIS_URL there is wrong, or users.conf has no line for it (Redis reads "
            "that file when it starts)."
        )


def lately() -> list[Refusal]:
    """Refusals of the last hour that still matter, newest first; [] if Redis is unreachable or has no ACL log.

    A wrong name or password no longer matters once a worker of that name has sent a heartbeat.
    """
    try:
        with connect(settings.REDIS_URL, ANSWER_LIMIT_S) as client:
            found = [_refusal(entry) for entry in client.acl_log() if str(entry["reason"]) in {"auth", "key"}]
    except (redis.RedisError, KeyError, ValueError) as error:
        log.warning("no refusals of Redis: %s", error)
        return []
    since = timezone.now() - LATELY
    beats = Worker.objects.values_list("name", "heartbeat_at")
    heard = {name: one_clock.here(at) if at else since for name, at in beats}
    stand = [one for one in found if one.at > since and (one.key or heard.get(one.user, since) < one.at)]
    return sorted(stand, key=lambda one: one.at, reverse=True)[:MOST]


def _refusal(entry: Mapping[str, Any]) -> Refusal:
    address = str(entry["client-info"]["addr"]).rpartition(":")[0]
    address = "this host" if "/" in address else address  # it came through this host's Unix socket
    at = timezone.now() - timedelta(seconds=float(entry["age-seconds"]))
    return Refusal(str(entry["username"]), address, at, str(entry["object"]) if entry["reason"] == "key" else "")
