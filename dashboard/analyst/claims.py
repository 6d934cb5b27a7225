"""How the analyst claims work: a database row holds its state, and a conditional update takes it.

A row whose analyst died is queued again by its lane's `recover`. A row that was claimed MAX_TRIES times without an end
is given up, so that one that kills the analyst does not do so for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.db.models import Model, QuerySet

from dashboard.analyst.process import Work

MAX_TRIES = 3
Row = TypeVar("Row", bound=Model)


def claim(
    queued: QuerySet[Row], busy: dict[str, Any], work: Callable[[Row], Work], give_up: Callable[[Row, str], None]
) -> Work | None:
    """Claims the oldest row of `queued` by setting the fields `busy`, which take it out of `queued`, and counts it in
    `tries`; returns its work, None if no row is queued.

    There is nothing to do, but perhaps more rows, where another process was faster, or where the row was given up:
    `give_up` gets it, and why.
    """
    row: Any = queued.order_by("pk").first()
    if row is None:
        return None
    if not queued.filter(pk=row.pk).update(**busy, tries=row.tries + 1):
        return iter(())
    if row.tries >= MAX_TRIES:
        give_up(row, f"begun {row.tries} times and never came to its end; the analyst's log says why.")
        return iter(())
    return work(row)
