"""Whole numbers out of an address: what is none, or larger than a database holds, counts as not given."""

from __future__ import annotations

from typing import Any

_MOST_DIGITS = 18
"""Below 2^63, and far below the digits at which Python refuses to read a number."""


def number(text: Any) -> int | None:
    """0 .. 10^18 - 1, in digits alone; None for all else. (`²` is a digit to `str.isdigit`, and no number.)"""
    given = str(text or "")
    return int(given) if len(given) <= _MOST_DIGITS and given.isdecimal() else None


def numbers(text: str) -> list[int]:
    """Those between commas, each once, in their order; parts that are none are left out."""
    found = (number(part.strip()) for part in text.split(","))
    return list(dict.fromkeys(one for one in found if one is not None))
