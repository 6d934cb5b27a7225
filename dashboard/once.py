"""A value that takes long to make is made once and cached, however many requests ask for it at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from django.core.cache import cache

from dashboard.one_look import one_look

T = TypeVar("T")
_guard = threading.Lock()
_making: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
"""Key -> the lock of the request that makes its value; gone when nobody waits for it any more."""


def once(key: str, make: Callable[[], T], seconds: float) -> T:
    """Returns the value cached under `key`, else what `make` returns, which is cached for `seconds`. Requests that ask
    while it is being made wait for it. `make` returns anything but None, and does not call `once` itself."""
    found: T | None = cache.get(key)
    if found is not None:
        return found
    with _guard:
        lock = _making.setdefault(key, threading.Lock())
    with lock:
        found = cache.get(key)
        if found is None:
            with one_look():  # what the page has read so far may be older than its key
                found = make()
            cache.set(key, found, seconds)
        return found
