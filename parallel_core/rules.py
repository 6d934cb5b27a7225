"""What rules between the fields of a spec are made of: an error that names fields, and the nearest valid values."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pydantic_core import PydanticCustomError


def divisors(n: int) -> list[int]:
    """All divisors of n (n >= 1), ascending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def few(values: Iterable[int], around: int) -> str:
    """The (at most six) values nearest to `around`, as text."""
    near = sorted(sorted(values, key=lambda v: abs(v - around))[:6])
    return ", ".join(map(str, near))


def rule(fields: tuple[str, ...], message: str) -> PydanticCustomError:
    """An error of a rule between fields; the first named field is where a form shows it."""
    return PydanticCustomError("rule", "{message}", {"message": message, "fields": list(fields)})
