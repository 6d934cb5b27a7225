"""Short names of runs that are called by the fields in which they differ: `Learning rate = 1e-3, Global batch = 16` is
`1e-3, 16` where the fields are said once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

LEAST = 3
"""Of fewer runs with the same fields, names stay whole."""
_FIELD = re.compile(r"(?:^|, )([^,=]+) = ")
_NUMBER = re.compile(r"(\d+)")


class Short(NamedTuple):
    """`names`: label -> short name, of those that have these `fields`."""

    fields: str = ""
    names: Mapping[str, str] = {}


WHOLE = Short()


def shortened(labels: Iterable[str]) -> Short:
    """The short names of labels that say the same fields; no names where fewer than LEAST do."""
    split = {label: _FIELD.split(label) for label in labels if " = " in label}
    fields = {label: tuple(parts[1::2]) for label, parts in split.items() if not parts[0] and len(parts) > 1}
    most = Counter(fields.values()).most_common(1)
    if not most or most[0][1] < LEAST:
        return WHOLE
    common = most[0][0]
    return Short(
        ", ".join(common), {label: ", ".join(split[label][2::2]) for label in fields if fields[label] == common}
    )


def in_order(name: str) -> Any:
    """What names are sorted by: numbers in them count as such, also `5e-4` as a whole part of one."""
    return [_part(part) for part in name.split(", ")]


def _part(part: str) -> tuple[int, float, list[tuple[int, int, str]]]:
    try:
        return 0, float(part), []
    except ValueError:
        words = (piece for piece in _NUMBER.split(part.lower()) if piece)
        return 1, 0.0, [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in words]
