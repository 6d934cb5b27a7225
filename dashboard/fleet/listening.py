"""Whether the controller is at work: it stamps a row of the database while it listens to the workers.

Nobody else hears heartbeats, so while the controller is away nothing can be said about a host: hosts are judged by how
silent they were when it last listened.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import redis
from django.conf import settings

from dashboard import one_clock
from dashboard.ages import span
from dashboard.fleet.models import ControllerState, Yard
from dashboard.one_look import read_once
from workers.contract import HEARTBEAT_S
from workers.wire import connect

STAMP_EVERY_S = HEARTBEAT_S
LEAST_FREE = 1 << 20
"""With fewer free bytes the disk of the database counts as full."""
FULL = "The disk of the database is full: nothing is placed or recorded until some of it is free; training goes on."
HEAR = "hear the workers"
"""What it fails at while Redis is away, or takes nothing because its disk is full."""
READ = "place or end anything before it has read what workers sent meanwhile"
"""What it cannot do yet, after it was away or Redis was."""
FULL_NOW = "trainyard:yard:full"
"""Key in Redis that is there while a PostgreSQL finds no room for what the controller writes."""
KNOWN_S = 15
"""For how long the key stays, and what is being read counts as such, after it was last said."""
ANSWER_LIMIT_S = 0.5
AWAY_S = 10.0
"""Age in seconds of the stamp above which the controller is away: some turns of it may take a few seconds."""


def stamp(failing: Sequence[dict[str, Any]]) -> None:
    """Notes, for the controller, that it listens now, and what it fails at (`control.guard.Guard.failing`)."""
    values = {"listened_at": one_clock.now(), "failing": list(failing)}
    if not ControllerState.objects.filter(pk=1).update(**values):
        ControllerState.objects.create(pk=1, **values)


def note_deaf(error: str) -> None:
    """Notes, for the controller, that Redis fails it with this error; until the next `stamp`."""
    ControllerState.objects.filter(pk=1).update(failing=[{"what": HEAR, "error": error}])


def note_reading() -> None:
    """Notes, for the controller, that it reads what workers sent while nobody listened; until the next `stamp`."""
    ControllerState.objects.filter(pk=1).update(failing=[{"what": READ, "at": one_clock.now().timestamp()}])


def note_full(client: redis.Redis) -> None:
    """Notes, for the controller, that the disk of the database is full, where that is not seen from here. Raises
    redis.RedisError."""
    client.set(FULL_NOW, 1, ex=KNOWN_S)


@read_once
def listened_until() -> datetime:
    """Until when heartbeats were heard: now, or when the controller listened last. In a yard in which it never did, no
    worker is known either."""
    now = one_clock.now()
    last = ControllerState.objects.values_list("listened_at", flat=True).first()
    return min(now, last) if last else now


def away_for() -> float | None:
    """Seconds since the controller listened last; None while it is at work, or if it never was."""
    age = (one_clock.now() - listened_until()).total_seconds()
    return age if age > AWAY_S else None


def away_sentence() -> str:
    """That the controller is away, and what follows from that; '' while it is at work."""
    seconds = away_for()
    if seconds is None:
        return ""
    rest = "nothing is placed or recorded until it is back; training goes on."
    if disk_is_full():
        return FULL
    if is_reading():
        sent = f"The controller is reading what workers sent in the last {span(seconds)}, when nobody listened"
        return f"{sent}: nothing is placed or ended until it has; training goes on."
    if error := deaf():
        return f"Redis has failed the controller for {span(seconds)} ({error}): {rest}"
    return f"The controller has not been heard for {span(seconds)}: {rest}"


@read_once
def disk_is_full() -> bool:
    """Whether it is away because its stamp finds no room: seen of a database in a file of this host, else said by the
    controller."""
    database = settings.DATABASES["default"]
    if not database["ENGINE"].endswith("sqlite3"):
        return not deaf() and _is_said_full()
    with suppress(OSError):
        return shutil.disk_usage(Path(database["NAME"]).parent).free < LEAST_FREE
    return False


def _is_said_full() -> bool:
    with suppress(redis.RedisError):
        return bool(connect(settings.REDIS_URL, ANSWER_LIMIT_S).exists(FULL_NOW))
    return False


def is_reading() -> bool:
    """Whether it reads what workers sent while nobody listened."""
    return any(one["what"] == READ and abs(one_clock.now().timestamp() - one["at"]) < KNOWN_S for one in _failing())


def deaf() -> str:
    """The error with which Redis fails the controller, if that is why it has heard nobody; else ''."""
    return next((str(one["error"]) for one in _failing() if one["what"] == HEAR), "")


def _failing() -> list[dict[str, Any]]:
    return ControllerState.objects.values_list("failing", flat=True).first() or []


def refused_sentence(whole: bool) -> str:
    """That the controller may not use the broker, as it is another yard's; '' if it may. The `whole` text says whose it
    is and what to change."""
    said = Yard.objects.values_list("refused", flat=True).first() or ""
    if not said or whole:
        return said and f"The controller is not at work. {said}"
    return (
        "The controller is not at work: the broker is that of another yard. An administrator can give this one its own."
    )


def is_at_work() -> bool:
    """Whether the controller has listened a moment ago; False as well if it never did."""
    return ControllerState.objects.exists() and away_for() is None


def failing_sentences() -> list[str]:
    """For administrators: what the controller fails at, one sentence each."""
    return [
        f"The controller cannot {one['what']}, {one['times']} times since {one['since']} UTC: "
        f"{one['error'].rstrip('.')}. Its log has the whole error; all else goes on."
        for one in _failing()
        if one["what"] not in (HEAR, READ)
    ]
