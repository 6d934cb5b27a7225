"""Numbers as JSON has them: null where a number is NaN or infinite."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def finite(value: float | None) -> float | None:
    """The number; None where it is missing, NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def finite_list(values: NDArray[np.float64]) -> list[float | None]:
    """The same of each value of a one-dimensional array."""
    return [finite(value) for value in values.tolist()]
