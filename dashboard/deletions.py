"""Says who deleted what, as the events of a run or a study go with it: in the log of the web, and in that of the admin,
which stays with the account of who did it, and has what had been changed of a study."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import transaction

log = logging.getLogger(__name__)
CALLED = {"corpus": "text"}
"""Kinds of rows that pages call otherwise than the database does."""
MOST = LogEntry._meta.get_field("object_repr").max_length


def note(user: Any, *deleted: Any) -> None:
    """Says it of each row, by its kind, number, name and owner, once the caller's transaction is committed. To be
    called in that, before the rows are deleted."""
    names = [_named(row) for row in deleted]
    LogEntry.objects.bulk_create(
        LogEntry(
            user_id=user.pk,
            content_type=ContentType.objects.get_for_model(row),
            object_id=str(row.pk),
            object_repr=name[:MOST],
            action_flag=DELETION,
            change_message=_history(row),
        )
        for row, name in zip(deleted, names, strict=True)
    )
    for name in names:
        transaction.on_commit(partial(log.info, f"{user.get_username()} deleted {name}"))


def _named(row: Any) -> str:
    kind = str(row._meta.verbose_name)
    return f"{CALLED.get(kind, kind)} {row.pk}, {row.name!r}, of {row.owner.get_username()}"


def _history(row: Any) -> str:
    """What had been changed of it, a line each: of a study, which alone keeps that without a run."""
    events = getattr(row, "history", ())
    return "\n".join(f"{event.at:%Y-%m-%d %H:%M} UTC: {event.text}" for event in events)
