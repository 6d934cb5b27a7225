"""How attempts end in the books: written down, then published; a restarted worker does both for an earlier life."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from workers import ending
from workers.attempt import end_processes
from workers.ending import Ending
from workers.folder import Folder, Meta
from workers.live_attempts import LiveAttempts
from workers.relay import Relay

log = logging.getLogger(__name__)


def publish_end(relay: Relay, folder: Folder, meta: Meta, how: Ending, none_left: bool) -> None:
    """Written down first: from here on a restart repeats this end and no other."""
    log.info("attempt %d: %s %s", folder.attempt, how.outcome, how.detail)
    meta.end = how.body(folder.attempt, none_left)
    folder.save(meta)
    relay.finish(folder.attempt, meta.end)


def recover(folders: Iterable[Folder], relay: Relay, roll: LiveAttempts) -> None:
    """Attempts of an earlier life: nothing of them may live; the rest of their data and their end are published."""
    for folder in folders:
        meta = folder.load()
        none_left = end_processes(list(meta.processes.values()))
        if meta.stop == "fenced":
            folder.settle()
            continue
        roll.add(folder, meta.ranks)
        relay.follow(folder, meta.ranks)
        if meta.end is not None:
            relay.finish(folder.attempt, meta.end)
        else:
            publish_end(relay, folder, meta, end_of(folder, meta), none_left)


def end_of(folder: Folder, meta: Meta) -> Ending:
    """An earlier life had begun to stop it, or the ranks had all ended, or one had failed, before that life did."""
    if meta.stopped_as:
        return Ending(**meta.stopped_as)
    return ending.of_files(folder.path, meta.ranks) or ending.WORKER_LOST
