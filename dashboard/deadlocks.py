"""Transactions that PostgreSQL ends because they and another one wait for each other's rows.

People's requests lock the study first, then its runs in the order of their numbers, then attempts, then workers. The
controller stores what workers send in the order in which it arrives, so its transactions may meet those of requests
the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from django.db import OperationalError, connection

P = ParamSpec("P")
T = TypeVar("T")
SQLSTATE = "40P01"
"""deadlock_detected, PostgreSQL's documentation, appendix A."""
TRIES = 4


def is_deadlock(error: BaseException) -> bool:
    """Whether PostgreSQL ended a transaction for a deadlock; it answers as ever."""
    return isinstance(error, OperationalError) and getattr(error.__cause__, "sqlstate", None) == SQLSTATE


def again_after_deadlock(action: Callable[P, T]) -> Callable[P, T]:
    """Calls `action`, whose transaction is its own, up to TRIES times where that was ended for a deadlock. Inside of a
    transaction of the caller only once: all of that has been undone."""

    @wraps(action)
    def tried(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(TRIES - 1):
            try:
                return action(*args, **kwargs)
            except OperationalError as error:
                if not is_deadlock(error) or connection.in_atomic_block:
                    raise
        return action(*args, **kwargs)

    return tried
