"""Records and publishes the ends of attempts, and empties the folders of those that are settled."""

from __future__ import annotations

import contextlib
import logging

from parallel_core.checkpoint.folder import drop_saves
from workers.attempt import Attempt
from workers.ending import Ending
from workers.folder import Folder, Meta
from workers.live_attempts import LiveAttempts
from workers.relay import Relay
from workers.settings import Settings

log = logging.getLogger(__name__)


def publish_end(
    relay: Relay, folder: Folder, meta: Meta, how: Ending, none_left: bool, ran_s: float | None = None
) -> None:
    """Stores the end before it is published: from then on, a restart repeats this end and no other. An end that cannot
    be stored is published as well: else the run would last for ever."""
    log.info("attempt %d: %s %s", folder.attempt, how.outcome, how.detail)
    meta.end = how.body(folder.attempt, none_left)
    if ran_s is not None:
        meta.end["ran_s"] = ran_s
    folder.try_save(meta)
    relay.finish(folder.attempt, meta.end)


class Ends:
    """Ends attempts for the supervisor, in its thread."""

    def __init__(self, settings: Settings, relay: Relay, roll: LiveAttempts) -> None:
        self._settings, self._relay, self._roll = settings, relay, roll

    def conclude(self, attempt: Attempt, none_left: bool) -> None:
        """Publishes the end of an attempt whose processes were stopped; a fenced one reports nothing more.

        `none_left`: whether all of them are known to have ended.
        """
        if attempt.meta.stop == "fenced":
            self.settle(attempt.number)
            return
        if attempt.launched is None:
            self._relay.follow(attempt.folder, [])
        how = attempt.how_it_ended()
        publish_end(self._relay, attempt.folder, attempt.meta, how, none_left, attempt.ran_s())

    def end_unstarted(self, folder: Folder, how: Ending) -> None:
        """Ends an attempt of which nothing was started here."""
        self._roll.add(folder, [])
        self._relay.follow(folder, [])
        publish_end(self._relay, folder, folder.load(), how, none_left=True)

    def settle(self, number: int) -> None:
        """Empties the folder after the relay has let go of it, in the relay's thread, which is then the only one to
        write there. What a killed rank left of a save goes, too: no later attempt may come to tidy up."""
        with contextlib.suppress(OSError):
            drop_saves(self._settings.checkpoints, number)
        folder = Folder(self._settings.attempts / str(number))
        self._roll.remove(number)
        if folder.path.exists():
            self._relay.forget(number, folder.settle)
