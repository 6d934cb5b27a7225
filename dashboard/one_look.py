"""One look at the database for all parts of a page: what is read again within it is what was read before.

Parts of a page would else tell of different moments, such as a heading of one traced step over the timeline of the
next; and a third of what a run's page reads would be read more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_read: ContextVar[dict[Any, Any] | None] = ContextVar("read", default=None)


@contextmanager
def one_look() -> Iterator[None]:
    """Until it ends, the functions of `read_once` answer from their first call. Also a decorator of a view, but not of
    one that streams: what it reads after it has returned is read anew. One inside another reads anew, too, as for what
    is kept longer than a page, under a key that may be newer than what the page has read."""
    token = _read.set({})
    try:
        yield
    finally:
        _read.reset(token)


def looking() -> bool:
    """Whether a look is under way."""
    return _read.get() is not None


def read_once(function: Callable[P, R]) -> Callable[P, R]:
    """Lets `function`, which only reads and whose arguments are hashable, answer from its first call within `one_look`;
    nobody may change what it returns. Outside of one it reads each time."""

    @wraps(function)
    def reading(*args: P.args, **kwargs: P.kwargs) -> R:
        known = _read.get()
        if known is None:
            return function(*args, **kwargs)
        key = (function, args, tuple(sorted(kwargs.items())))
        if key not in known:
            known[key] = function(*args, **kwargs)
        found: R = known[key]
        return found

    return reading
