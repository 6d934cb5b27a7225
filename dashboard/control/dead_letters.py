"""Records that cannot be stored: after TRIES tries they are set aside, and what follows them goes on.

A batch that fails is dropped and asked for again, as the fault may be a passing one; the row of its cursor counts how
often. From the TRIES-th time on its records are stored one at a time, each in a transaction of its own, which moves the
cursor behind it. A record that fails even then becomes a DeadLetter in the transaction that moves the cursor: at every
moment, whoever is killed, it is still asked for or it is kept.

A database that cannot be reached is no fault of a record: then everything waits (see `controller`).
"""

from __future__ import annotations

import logging

from django.db import InterfaceError, OperationalError, transaction

from dashboard.control.arrival import rewind
from dashboard.control.batches import Batch, records_of
from dashboard.control.ingest import Ingest, applied
from dashboard.control.wire import Entry
from dashboard.json_values import storable_text
from dashboard.runs import states
from dashboard.runs.models import Attempt, Cursor, DeadLetter

log = logging.getLogger(__name__)

TRIES = 3
MAX_ERROR = 400
UNREACHABLE = (OperationalError, InterfaceError)


def stored_alone(entry: Entry) -> list[Ingest]:
    """Applies one entry. If that fails, a batch of an attempt's file is asked for again or stored record by record; any
    other entry is dropped.

    Raises one of UNREACHABLE.
    """
    done: list[Ingest] = []
    try:
        return [applied([entry])]
    except UNREACHABLE:
        raise
    except Exception:
        log.exception("entry %r of %s failed: %s %s", entry.id, entry.worker, entry.kind, entry.body)
    try:
        _after_failure(entry, done)
    except UNREACHABLE:
        raise
    except Exception:
        log.exception("dropped entry %r of %s", entry.id, entry.worker)
    return done


def _after_failure(entry: Entry, done: list[Ingest]) -> None:
    """Adds to `done` what was stored, or the message that asks again."""
    batch = Batch.of(entry) if entry.kind == "batch" else None
    row = _count(batch) if batch else None
    if batch is None or row is None:
        return
    if row.failures < TRIES:
        done.append(Ingest(messages=[(entry.worker, rewind(batch.key, row.offset))]))
        return
    for record in records_of(entry):
        try:
            done.append(applied([record]))
        except UNREACHABLE:
            raise
        except Exception as error:
            log.exception("a record of attempt %s is set aside: %s", batch.attempt, record.body)
            done.append(_set_aside(record, error))


@transaction.atomic
def _count(batch: Batch) -> Cursor | None:
    """Counts a failure of what follows the cursor of the batch's file; None if the attempt was deleted."""
    if not Attempt.objects.filter(pk=batch.attempt).exists():
        return None
    every = Cursor.objects.select_for_update()
    row, _ = every.get_or_create(attempt_id=batch.attempt, rank=batch.rank, channel=batch.channel)
    row.failures = min(row.failures + 1, TRIES)
    row.save(update_fields=("failures",))
    return row


@transaction.atomic
def _set_aside(entry: Entry, error: Exception) -> Ingest:
    """Keeps the record, and moves the cursor behind it."""
    ingest, batch, text = Ingest(), Batch.of(entry), first_line(error)
    attempt = ingest.load(batch.attempt)
    if attempt is None:  # it was deleted meanwhile
        return ingest
    begin = max(batch.start, ingest.store.offset(batch.key))
    ingest.store.advance(batch.key, batch.end)
    is_log = batch.channel == "log"
    data = entry.data[begin - batch.start :] if is_log else entry.data  # of a record, which is kept whole
    DeadLetter.objects.create(
        attempt=attempt, rank=batch.rank, channel=batch.channel, start=begin, end=batch.end, error=text, data=data
    )
    who = f"{'Parts of the log' if is_log else 'Records'} of rank {batch.rank} could not be stored and were set aside"
    states.record_once(attempt, "set_aside", who, f". The first error: {text}")
    ingest.touched.add(attempt.pk)
    ingest.finish()
    return ingest


def first_line(error: Exception) -> str:
    """Type and first line of an error, as text that every database can store: it may quote what could not be stored."""
    return storable_text(f"{type(error).__name__}: {error}".partition("\n")[0])[:MAX_ERROR]
