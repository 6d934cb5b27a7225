"""Work that may take long before the ranks of an attempt can start: fetching its corpus, verifying its checkpoint."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from parallel_core.checkpoint.verify import verified
from workers import corpora
from workers.corpora import CorpusMissing
from workers.run_commands import Refused, RunCommand, with_beginning
from workers.settings import Settings

log = logging.getLogger(__name__)


def is_due(settings: Settings, command: RunCommand) -> bool:
    return command.is_retry or not corpora.have(settings, command.spec.train.corpus)


def prepare(settings: Settings, command: RunCommand) -> RunCommand:
    """Fetches the corpus and returns the command, ready to launch, as checkpoints are now.

    A retry begins at the newest checkpoint that passes a check of every byte: one that its ranks refused would end the
    run, although an older checkpoint may be whole.

    Raises CorpusMissing or Refused.
    """
    if not corpora.have(settings, command.spec.train.corpus):
        corpora.fetch(settings, command.spec.train.corpus)
    return with_beginning(command, settings, verified) if command.message["number"] > 1 else command


def prepare_aside(settings: Settings, command: RunCommand, done: Callable[[RunCommand | Refused], None]) -> None:
    """Calls `prepare` in a thread, which then calls `done` with the command, or with the Refused of a failure."""

    def run() -> None:
        found: RunCommand | Refused
        try:
            found = prepare(settings, command)
        except (CorpusMissing, Refused) as error:
            found = Refused(str(error))
        except Exception as error:  # such as a full disk
            log.exception("attempt %d cannot be prepared", command.attempt)
            found = Refused(f"Worker {settings.name} cannot prepare the run: {error}")
        done(found)

    threading.Thread(target=run, name="preparation", daemon=True).start()
