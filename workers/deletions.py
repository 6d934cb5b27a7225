"""Deletes what the controller orders to delete, unless ranks use it: then the controller will ask again."""

from __future__ import annotations

from collections.abc import Iterable

from workers import checkpoints, corpora
from workers.attempt import Attempt
from workers.contract import RunIdentity
from workers.relay import Relay
from workers.settings import Settings


def drop_checkpoints(
    settings: Settings, relay: Relay, live: Iterable[Attempt], run: int, identity: RunIdentity | None
) -> None:
    """Deletes the checkpoints of a run that was deleted, and reports that; not while an attempt in `live` may read or
    write them."""
    if not any(attempt.command.touches(run) for attempt in live):
        checkpoints.drop(settings, run, identity)
        relay.tell("dropped", {"run": run})


def drop_text(settings: Settings, live: Iterable[Attempt], sha256: str) -> None:
    """Deletes the cached copy of a text that was deleted; not while an attempt in `live` reads it, as it may have been
    uploaded again since."""
    if not any(attempt.command.reads_text(sha256) for attempt in live):
        corpora.drop(settings, sha256)
