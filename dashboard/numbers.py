"""Parses whole numbers of a query; anything else, or more than a database column holds, counts as not given."""

from __future__ import annotations

from typing import Any

_MOST_DIGITS = 18
"""Below 2^63, and far below the number of digits that Python refuses to parse."""


def number(text: Any) -> int | None:
    """The number if `text` is 1 to 18 decimal digits, else None. (`²` is a digit to `str.isdigit`, not a number.)"""
    given = str(text or "")
    return int(given) if len(given) <= _MOST_DIGITS and given.isdecimal() else None


def numbers(text: str) -> list[int]:
    """The numbers between commas, each once, in their order; other parts are left out."""
    found = (number(part.strip()) for part in text.split(","))
    return list(dict.fromkeys(one for one in found if one is not None))
