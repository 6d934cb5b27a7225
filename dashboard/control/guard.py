"""Keeps one part of the controller that fails from stopping the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis
from django.db import InterfaceError, OperationalError, connection
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerError

from dashboard.json_values import storable_text

log = logging.getLogger(__name__)

UNREACHABLE = (redis.RedisError, BrokerError, OperationalError, InterfaceError, ConnectionError, TimeoutError)
"""Broker or database: no part could do anything, so the whole turn is tried again."""
MAX_CHARACTERS = 300
"""Length to which an error is cut for pages."""


@dataclass
class Failure:
    """A part that failed each time since `since` (text, UTC); `error` = its last error, in one line."""

    since: str
    error: str
    times: int = 0


class Guard:
    """Runs the controller's parts. Used by one thread."""

    def __init__(self) -> None:
        self._failures: dict[str, Failure] = {}

    def run(self, what: str, action: Callable[[], None], can_wait: bool = False) -> bool:
        """Runs a part of the controller; `what` completes "the controller cannot ...". Returns whether it succeeded.

        An error is logged and counted, and the caller goes on; only one of UNREACHABLE is raised. An operational error
        of a part that `can_wait` is raised only if the connection is lost, and with it perhaps the controller's lock.
        """
        session = connection.connection
        try:
            action()
        except Exception as error:
            refused = can_wait and isinstance(error, OperationalError) and _has(session)
            if isinstance(error, UNREACHABLE) and not refused:
                raise
            self._note(what, error)
            return False
        if self._failures.pop(what, None):
            log.warning("the controller can %s again", what)
        return True

    def _note(self, what: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {one_line(error)}"[:MAX_CHARACTERS]
        failure = self._failures.setdefault(what, Failure(f"{timezone.now():%Y-%m-%d %H:%M:%S}", ""))
        if failure.error != text:  # repeated all the time: logged once
            log.exception("the controller cannot %s; the rest goes on", what)
        failure.error, failure.times = text, failure.times + 1

    @property
    def failing(self) -> list[dict[str, Any]]:
        """What failed at its last run: {what, since, error, times} each."""
        return [{"what": what, **vars(failure)} for what, failure in self._failures.items()]


def one_line(error: Exception) -> str:
    """What an error says, for a page. Of a command that was one of many, Redis' answer is meant, not the command."""
    said = str(error).rpartition(" of pipeline caused error: ")[2]
    return storable_text(" ".join(said.split()))[:MAX_CHARACTERS].rstrip(".")


def _has(session: object) -> bool:
    """Whether the connection is still the one that it was, and works: Django closes it where a rollback fails, and
    opens another."""
    return connection.connection is session and connection.is_usable()
