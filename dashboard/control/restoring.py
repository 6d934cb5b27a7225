"""Stores again what was set aside and an admin asked for (`fleet.dead_letters`), for the controller.

Only the controller writes what is measured, so the web process asks and this module does. Each record is tried once a
request, in a transaction of its own, which deletes it from those set aside. One that is refused again stays there with
the new error; so does one during whose try the database or the controller goes away, with the error it had.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable

from django.db import connection, transaction
from django.utils import timezone

from dashboard.control import multi_host
from dashboard.control.dead_letters import first_line
from dashboard.control.frames import decode_batch
from dashboard.control.ingest import Ingest
from dashboard.control.late import LateStore
from dashboard.control.summary import outdate
from dashboard.control.wire import Entry
from dashboard.runs import states
from dashboard.runs.models import ENDED, Attempt, DeadLetter
from parallel_core.analysis.quantities import plural_text

log = logging.getLogger(__name__)

MOST_AT_ONCE = 50
"""Records that one turn of the controller stores again, so that events do not wait long."""


def store_asked() -> list[Ingest]:
    """Tries up to MOST_AT_ONCE of the records that were asked for, in the order in which they were set aside. Returns
    what was stored. Raises one of UNREACHABLE if the database is away."""
    asked = DeadLetter.objects.filter(store_asked_at__isnull=False)
    done: list[Ingest] = []
    stored: dict[int, list[bool]] = defaultdict(list)
    for pk in list(asked.order_by("pk").values_list("pk", flat=True)[:MOST_AT_ONCE]):
        if letter := _begun(pk):
            ingest = _tried(letter)
            stored[letter.attempt_id].append(ingest is not None)
            done += [ingest] if ingest else []
    for attempt, each in stored.items():
        _record(attempt, each)
    if stored:
        news = Ingest()
        news.topics[None, None].add("fleet")
        done.append(news)
    return done


def _begun(pk: int) -> DeadLetter | None:
    """Takes the request back before it is tried, or a record that takes the connection or the controller with it would
    be tried for ever; None if it was discarded meanwhile."""
    found = DeadLetter.objects.filter(pk=pk)
    found.update(store_asked_at=None, tried_at=timezone.now())
    return found.select_related("attempt__run").first()


def _tried(letter: DeadLetter) -> Ingest | None:
    """Returns None if it is refused again. Raises one of UNREACHABLE if that took the connection, and so perhaps the
    controller's lock."""
    session = connection.connection
    try:
        return _stored(letter)
    except Exception as error:  # of a database that is away, the next statement raises it again
        log.exception("record %s of attempt %s is refused again", letter.pk, letter.attempt_id)
        DeadLetter.objects.filter(pk=letter.pk).update(error=first_line(error))
        if connection.connection is not session:
            raise
        return None


@transaction.atomic
def _stored(letter: DeadLetter) -> Ingest:
    """Puts the bytes through the ingest as the batch that they were.

    Raises as `Ingest.apply`, what the database raises, and ValueError if they are no whole records.
    """
    data = bytes(letter.data)
    if letter.channel == "events" and decode_batch(data, letter.start).end != letter.end:
        raise ValueError("its bytes are no whole records")
    ingest = Ingest(store=LateStore(letter.start))
    if DeadLetter.objects.filter(pk=letter.pk).delete()[0]:  # else it was discarded meanwhile
        ingest.apply(_entry(letter, data))
        ingest.finish()
    run = letter.attempt.run
    outdate(run.pk)
    ended = ingest.ended | ({run.pk} if run.state in ENDED else set())  # also where a lost worker never said how much
    return Ingest(topics=ingest.topics, ended=ended)  # its worker was told all when the cursor passed it


def _entry(letter: DeadLetter, data: bytes) -> Entry:
    """The entry that the record came with, without the rest of its batch."""
    worker = multi_host.worker_of(letter.attempt.devices, letter.rank)
    about = {"attempt": letter.attempt_id, "rank": letter.rank, "channel": letter.channel}
    bounds = {"start": letter.start, "end": letter.end, "omitted": letter.end - letter.start - len(data)}
    return Entry(b"0-0", worker, letter.attempt.worker_boot, "batch", {**about, **bounds}, data)


def _record(attempt: int, each: Iterable[bool]) -> None:
    """Writes an Event about the records of an attempt that were tried: whether each was stored."""
    found = Attempt.objects.select_related("run").filter(pk=attempt).first()
    if found is None:
        return
    outcomes = list(each)
    told = [
        f"{plural_text(count, 'record')} that had been set aside {'was' if count == 1 else 'were'} {what}."
        for count, what in ((sum(outcomes), "stored after all"), (outcomes.count(False), "refused again"))
        if count
    ]
    states.record(found.run, "stored_again", " ".join(told), found)
