"""JSON as a person or a program wrote it: a name that stands twice in one object is an error, as the first of its
values would be lost."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any


class NamedTwice(ValueError):
    """A name stands twice in one object; the message says which."""


def read(text: str | bytes) -> Any:
    """Parses a text. Raises NamedTwice, else as json.loads: ValueError, of which JSONDecodeError is one, and
    RecursionError."""
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        counts = Counter(name for name, _ in pairs)  # a body of megabytes may have hundreds of thousands
        twice = next(name for name, count in counts.items() if count > 1)
        raise NamedTwice(f"{twice[:40]!r} stands twice in one object")
    return made
