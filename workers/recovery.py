"""A restarted worker ends the attempts of its earlier life, and publishes their ends."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from workers import ending
from workers.attempt import end_processes
from workers.conclusion import publish_end
from workers.ending import Ending
from workers.folder import Folder, Meta
from workers.live_attempts import LiveAttempts
from workers.relay import Relay

log = logging.getLogger(__name__)


def recover(folders: Iterable[Folder], relay: Relay, roll: LiveAttempts) -> None:
    """Ends attempts of the worker's earlier life. A folder whose attempt cannot be ended is left for the next start."""
    for folder in folders:
        try:
            _recover(folder, relay, roll)
        except Exception:
            log.exception("attempt %d of an earlier life of this worker could not be ended", folder.attempt)
            roll.remove(folder.attempt)  # heartbeats that list it would keep its run going for ever


def _recover(folder: Folder, relay: Relay, roll: LiveAttempts) -> None:
    """Kills the attempt's processes, publishes the rest of its data and its end."""
    meta = folder.load()
    none_left = end_processes(list(meta.processes.values()))
    if meta.stop == "fenced":
        folder.settle()
        return
    roll.add(folder, meta.ranks)
    relay.follow(folder, meta.ranks)
    if meta.end is not None:
        relay.finish(folder.attempt, meta.end)
    else:
        publish_end(relay, folder, meta, end_of(folder, meta), none_left)


def end_of(folder: Folder, meta: Meta) -> Ending:
    """How an attempt of the earlier life ended: as recorded by its ranks if they succeeded before a shutdown reached
    them; else as the stop that had begun; else as recorded by its ranks; else lost."""
    left = ending.of_files(folder.path, meta.ranks)
    if meta.stopped_as and (left is None or not ending.outran(left, meta.stop)):
        return Ending(**meta.stopped_as)
    return left or ending.WORKER_LOST
