"""Columns of span rows and their like, by their type: NumPy knows a column of a structured array only as `Any`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Nanoseconds = NDArray[np.int64]


def starts(rows: NDArray[Any]) -> Nanoseconds:
    begun: Nanoseconds = rows["start"]
    return begun


def ends(rows: NDArray[Any]) -> Nanoseconds:
    ended: Nanoseconds = rows["end"]
    return ended


def lasted(rows: NDArray[Any]) -> Nanoseconds:
    """From each row's start to its end."""
    return ends(rows) - starts(rows)
