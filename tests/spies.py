"""Wrappers that a test puts in place of functions to see how they are called; the functions still do their work."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def noting(real: Callable[P, R], notes: list[T], note: Callable[..., T]) -> Callable[P, R]:
    """Wraps `real`: each call first appends what `note` makes of its arguments to `notes`."""

    @wraps(real)
    def noted(*args: P.args, **kwargs: P.kwargs) -> R:
        notes.append(note(*args, **kwargs))
        return real(*args, **kwargs)

    return noted
