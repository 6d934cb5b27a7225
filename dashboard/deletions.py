"""Says in the log who deleted what, as the events of a run go with it, and who renamed a study, which has no events."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from django.db import transaction

log = logging.getLogger(__name__)


def note(user: Any, *deleted: Any) -> None:
    """Says it of each row, by its kind, number, name and owner, once the caller's transaction is committed. To be
    called before the rows are deleted."""
    lines = [
        f"{user.get_username()} deleted {row._meta.verbose_name} {row.pk}, {row.name!r}, of {row.owner.get_username()}"
        for row in deleted
    ]
    for line in lines:
        transaction.on_commit(partial(log.info, line))


def note_name(user: Any, renamed: Any, before: str) -> None:
    """Says that the row has another name than `before`, once the caller's transaction is committed."""
    who, what = user.get_username(), f"{renamed._meta.verbose_name} {renamed.pk}, {before!r}"
    line = f"{who} renamed {what}, of {renamed.owner.get_username()}: {renamed.name!r}"
    transaction.on_commit(partial(log.info, line))
