"""Stores entries, and sets aside records that cannot be stored: what follows them goes on.

Entries are stored together or, if that fails, one at a time. A batch that fails alone is dropped and asked for again,
as the fault may be a passing one; the row of its cursor counts how often. From the TRIES-th time on its records are
stored one at a time, each in a transaction of its own, which moves the cursor behind it. A record that fails even then
becomes a DeadLetter in the transaction that moves the cursor: at every moment, whoever is killed, it is still asked for
or it is kept.

An operational error may be that of a database that is away, which is no fault of a record: then everything waits in the
broker (see `controller`). Only an entry that is found to be the cause (`suspects`) goes, record by record, the same
way; its tries are in the stream, so it is not asked for again.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence

from django.db import connection, transaction

from dashboard.control.arrival import rewind
from dashboard.control.batches import Batch, records_of
from dashboard.control.ingest import Ingest, applied
from dashboard.control.suspects import UNREACHABLE, Source, Suspects
from dashboard.control.wire import Entry
from dashboard.json_values import storable_text
from dashboard.runs import states
from dashboard.runs.models import Attempt, Cursor, DeadLetter

log = logging.getLogger(__name__)

TRIES = 3
MAX_ERROR = 400


def stored(entries: Sequence[Entry], suspects: Suspects) -> list[Ingest]:
    """Applies all entries in one transaction. If an entry raises, applies each in its own.

    Raises one of UNREACHABLE if the database may be away: the same entries are then to be tried again.
    """
    if not entries:
        return []
    done = None if suspects.alone else _stored_together(entries, suspects)
    if done is None:
        done = [ingest for entry in entries for ingest in _stored_alone(entry, suspects)]
    suspects.forget()
    return done


def _stored_together(entries: Sequence[Entry], suspects: Suspects) -> list[Ingest] | None:
    """Applies all entries in one transaction; None if one of them is at fault. Raises one of UNREACHABLE: then the
    connection may be lost, so that even to try them alone is left to the next turn."""
    try:
        return [applied(entries)]
    except UNREACHABLE:
        suspects.failed_together()
        raise
    except Exception:
        log.exception("a batch of %s entries failed; trying them one at a time", len(entries))
        return None


def _stored_alone(entry: Entry, suspects: Suspects) -> list[Ingest]:
    """Applies one entry. If that fails, a batch of an attempt's file is asked for again or stored record by record; any
    other entry is dropped.

    Raises one of UNREACHABLE.
    """
    done: list[Ingest] = []
    tried = _tried(entry, entry.id, suspects, suspects.patience(_source(entry)))
    if isinstance(tried, Ingest):
        return [tried]
    log.error("entry %r of %s failed: %s %s", entry.id, entry.worker, entry.kind, entry.body, exc_info=tried)
    try:
        _after_failure(entry, tried, suspects, done)
    except UNREACHABLE:
        raise
    except Exception:
        log.exception("dropped entry %r of %s", entry.id, entry.worker)
    return done


def _tried(entry: Entry, unit: Hashable, suspects: Suspects, patience: float) -> Ingest | Exception:
    """Applies one entry, or returns the error that is its own fault. Raises one of UNREACHABLE as long as that may be
    the database's, or if the connection was lost: only at the next turn it is known to be the controller's again."""
    if found := suspects.error_of(unit):
        return found
    session = connection.connection
    try:
        return applied([entry])
    except UNREACHABLE as error:
        if not suspects.is_at_fault(unit, _source(entry), error, patience) or connection.connection is not session:
            raise
        return error
    except Exception as error:
        return error


def _source(entry: Entry) -> Source:
    return entry.worker, str(entry.body.get("attempt", ""))


def _after_failure(entry: Entry, error: Exception, suspects: Suspects, done: list[Ingest]) -> None:
    """Adds to `done` what was stored, or the message that asks again."""
    batch = Batch.of(entry) if entry.kind == "batch" else None
    if batch is None:
        return
    # An operational error was waited for long enough, and so were all records of the entry.
    patience = 0.0 if isinstance(error, UNREACHABLE) else suspects.patience(_source(entry))
    if not isinstance(error, UNREACHABLE):
        row = _count(batch)
        if row is None:
            return
        if row.failures < TRIES:
            done.append(Ingest(messages=[(entry.worker, rewind(batch.key, row.offset))]))
            return
    for record in records_of(entry):
        tried = _tried(record, (batch.key, record.body["start"]), suspects, patience)
        if isinstance(tried, Exception):
            log.error("a record of attempt %s is set aside: %s", batch.attempt, record.body, exc_info=tried)
            tried = _set_aside(record, tried)
        done.append(tried)


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
    offset = ingest.store.offset(batch.key)
    if offset >= batch.end:  # it was set aside in a turn that failed after that
        return ingest
    begin = max(batch.start, offset)
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
