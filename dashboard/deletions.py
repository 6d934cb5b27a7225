"""Says in the log who deleted what, as the events of a run or a study go with it."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from django.db import transaction

log = logging.getLogger(__name__)
CALLED = {"corpus": "text"}
"""Kinds of rows that pages call otherwise than the database does."""


def note(user: Any, *deleted: Any) -> None:
    """Says it of each row, by its kind, number, name and owner, once the caller's transaction is committed. To be
    called before the rows are deleted."""
    for line in [f"{user.get_username()} deleted {_named(row)}" for row in deleted]:
        transaction.on_commit(partial(log.info, line))


def _named(row: Any) -> str:
    kind = str(row._meta.verbose_name)
    return f"{CALLED.get(kind, kind)} {row.pk}, {row.name!r}, of {row.owner.get_username()}"
