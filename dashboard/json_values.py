"""Values as JSON and both databases have them: null where a number is NaN or infinite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def finite(value: float | None) -> float | None:
    """The number; None where it is missing, NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def finite_list(values: NDArray[np.float64]) -> list[float | None]:
    """The same of each value of a one-dimensional array."""
    return [finite(value) for value in values.tolist()]


def without_null(text: str) -> str:
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def storable_text(text: str) -> str:
    """The text as both databases and a page accept it, on whatever it quotes: halves of characters (lone surrogates)
    are escaped, null characters replaced."""
    return without_null(text if text.isascii() else text.encode(errors="backslashreplace").decode())


def clean(value: Any, text: Callable[[str], str] = without_null) -> Any:
    """Returns JSON that both databases accept: None for NaN and infinity, no null characters in text. `text` is applied
    to all text: `storable_text` where a sentence may quote anything, such as a name in a file."""
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {clean(key, text): clean(item, text) for key, item in value.items()}
    return [clean(item, text) for item in value] if isinstance(value, list) else value
