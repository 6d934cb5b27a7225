"""Tells an entry that the database never takes from a database that is away.

Both raise an operational error. While the database is away nothing can be kept, so everything waits. But where one
entry fails alone for PATIENCE_S and LEAST_TRIES times, and between any two of its tries a row can be written in a
transaction of its own, the entry is the cause: it is handled as one that fails with any other error, and what follows
it goes on.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Hashable

from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction
from django.utils import timezone

from dashboard.disk_full import is_disk_full
from dashboard.fleet.models import ControllerState

log = logging.getLogger(__name__)

UNREACHABLE = (OperationalError, InterfaceError)
"""Errors of a database that is away, or that only one entry causes."""
TRIES_TOGETHER = 3
"""How often in a row the transaction of several entries fails before they are tried one at a time."""
PATIENCE_S = 20.0
"""How long an entry fails alone before it counts as the cause: longer than a lock or a restart of the database that
spares a trivial write usually takes."""
LEAST_TRIES = 5
"""And how often: one try may wait for a lock of SQLite as long as all of PATIENCE_S."""
PATIENCE_AGAIN_S = 1.0
"""For how long, however often, another entry of a source that had one within REMEMBERED_S, or each of many would hold
up the rest."""
REMEMBERED_S = 600.0
SCRATCH_ROW = 2
"""Key of a row of ControllerState that no other transaction ever sees; the only real one has the key 1."""

Source = tuple[str, str]
"""(worker, attempt) that entries come from; '' as the attempt of those about none."""


class Suspects:
    """What fails alone, of the entries that were read and not acknowledged yet. Used by one thread.

    A unit (any key) is what is tried alone: an entry, or one of its records.
    """

    def __init__(self) -> None:
        self._failed_together = 0
        self._since: dict[Hashable, float] = {}
        self._tries: Counter[Hashable] = Counter()
        self._found: dict[Hashable, Exception] = {}
        self._sources: dict[Source, float] = {}

    def failed_together(self) -> None:
        """Counts an operational error of the transaction of several entries."""
        self._failed_together += 1

    @property
    def alone(self) -> bool:
        """Whether the entries are to be tried one at a time from the beginning."""
        return self._failed_together >= TRIES_TOGETHER or (
            self._failed_together > 0 and any(map(self._remembers, self._sources))
        )

    def patience(self, source: Source) -> float:
        """For how many seconds an entry of `source` has to fail alone."""
        return PATIENCE_AGAIN_S if self._remembers(source) else PATIENCE_S

    def _remembers(self, source: Source) -> bool:
        return time.monotonic() < self._sources.get(source, float("-inf"))

    def error_of(self, unit: Hashable) -> Exception | None:
        """The error of a unit that was found to be at fault, else None."""
        return self._found.get(unit)

    def is_at_fault(self, unit: Hashable, source: Source, error: Exception, patience: float) -> bool:
        """Notes that the unit failed alone just now; whether it has done so for `patience` seconds (and often
        enough), with other writes taken all along. `error_of` knows it from then on.

        A full disk is never its fault, though that may still take a small row."""
        if is_disk_full(error) or not takes_writes():
            self._since.clear()  # whatever failed may have failed for that
            self._tries.clear()
            return False
        now = time.monotonic()
        if unit not in self._since:
            log.warning("%s fails alone, while other writes are taken: %s", unit, error)
        self._tries[unit] += 1
        least = LEAST_TRIES if patience >= PATIENCE_S else 1
        if now - self._since.setdefault(unit, now) < patience or self._tries[unit] < least:
            return False
        self._sources[source] = now + REMEMBERED_S
        self._found[unit] = error
        return True

    def forget(self) -> None:
        """Everything that was read is stored, kept or dropped. Sources are remembered."""
        self._failed_together = 0
        self._since.clear()
        self._tries.clear()
        self._found.clear()


def takes_writes() -> bool:
    """Whether the database takes a row in a transaction of its own, which deletes it again. Replaces the connection if
    it is broken: the caller may then have lost the controller's lock."""
    try:
        if not connection.in_atomic_block and not connection.is_usable():
            connection.close()
        with transaction.atomic():
            ControllerState.objects.create(pk=SCRATCH_ROW, listened_at=timezone.now()).delete()
    except (DatabaseError, InterfaceError):
        return False
    return True
