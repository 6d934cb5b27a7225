"""Values as JSON and both databases have them: null where a number is NaN or infinite."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def finite(value: float | None) -> float | None:
    """The number; None where it is missing, NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def finite_list(values: NDArray[np.float64]) -> list[float | None]:
    """The same of each value of a one-dimensional array."""
    return [finite(value) for value in values.tolist()]


def storable_text(text: str) -> str:
    """The text as both databases accept it, on whatever it quotes: halves of characters (lone surrogates) are
    escaped, null characters replaced."""
    return str(clean(text.encode(errors="backslashreplace").decode()))


def clean(value: Any) -> Any:
    """Returns JSON that both databases accept: None for NaN and infinity, no null characters in text."""
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, str):
        return value.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    if isinstance(value, dict):
        return {clean(key): clean(item) for key, item in value.items()}
    return [clean(item) for item in value] if isinstance(value, list) else value
