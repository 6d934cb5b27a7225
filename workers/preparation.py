"""What may take long before the ranks of an attempt can start: its text is fetched, its checkpoint read through."""

from __future__ import annotations

import threading
from collections.abc import Callable

from parallel_core.checkpoint.verify import verified
from workers import corpora
from workers.corpora import CorpusMissing
from workers.run_orders import Refused, RunOrder, with_beginning
from workers.settings import Settings


def is_due(settings: Settings, order: RunOrder) -> bool:
    return order.is_retry or not corpora.have(settings, order.spec.train.corpus)


def prepare(settings: Settings, order: RunOrder) -> RunOrder:
    """The order as it can be carried out. A retry goes on from the newest checkpoint of which every byte is as it was
    written: one that its ranks would refuse would end the run, though an older one is whole.

    Raises CorpusMissing or Refused.
    """
    if not corpora.have(settings, order.spec.train.corpus):
        corpora.fetch(settings, order.spec.train.corpus)
    return with_beginning(order, settings, verified) if order.is_retry else order


def prepare_aside(settings: Settings, order: RunOrder, done: Callable[[RunOrder | Refused], None]) -> None:
    """The same in a thread of its own, which then calls `done` with the order, or with why it cannot be had."""

    def run() -> None:
        found: RunOrder | Refused
        try:
            found = prepare(settings, order)
        except (CorpusMissing, Refused) as error:
            found = Refused(str(error))
        done(found)

    threading.Thread(target=run, name="preparation", daemon=True).start()
