"""Work that may take long before the ranks of an attempt can start: fetching its corpus, verifying its checkpoint."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from parallel_core.checkpoint.verify import verified
from workers import corpora
from workers.corpora import CorpusMissing
from workers.run_orders import Refused, RunOrder, with_beginning
from workers.settings import Settings

log = logging.getLogger(__name__)


def is_due(settings: Settings, order: RunOrder) -> bool:
    return order.is_retry or not corpora.have(settings, order.spec.train.corpus)


def prepare(settings: Settings, order: RunOrder) -> RunOrder:
    """Fetches the corpus and returns the order, ready to launch.

    A retry begins at the newest checkpoint that passes a check of every byte: one that its ranks refused would end the
    run, although an older checkpoint may be whole.

    Raises CorpusMissing or Refused.
    """
    if not corpora.have(settings, order.spec.train.corpus):
        corpora.fetch(settings, order.spec.train.corpus)
    return with_beginning(order, settings, verified) if order.is_retry else order


def prepare_aside(settings: Settings, order: RunOrder, done: Callable[[RunOrder | Refused], None]) -> None:
    """Calls `prepare` in a thread, which then calls `done` with the order, or with the Refused of a failure."""

    def run() -> None:
        found: RunOrder | Refused
        try:
            found = prepare(settings, order)
        except (CorpusMissing, Refused) as error:
            found = Refused(str(error))
        except Exception as error:  # such as a full disk
            log.exception("attempt %d cannot be prepared", order.attempt)
            found = Refused(f"Worker {settings.name} cannot prepare the run: {error}")
        done(found)

    threading.Thread(target=run, name="preparation", daemon=True).start()
