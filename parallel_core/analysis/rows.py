"""Typed columns of span rows and the like: NumPy types a column of a structured array only as `Any`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.sweep import Times


def starts(rows: NDArray[Any]) -> Times:
    """The start of each row [n], ns."""
    begun: Times = rows["start"]
    return begun


def ends(rows: NDArray[Any]) -> Times:
    """The end of each row [n], ns."""
    ended: Times = rows["end"]
    return ended


def last_end(spans: Mapping[int, NDArray[Any]]) -> int:
    """When the last of some ranks, none of which is without rows, ended, ns: of a simulated step, how long it takes."""
    return max(int(rows["end"].max()) for rows in spans.values())


def durations(rows: NDArray[Any]) -> Times:
    """Nanoseconds from each row's start to its end."""
    return ends(rows) - starts(rows)


def by_start(rows: NDArray[np.void]) -> NDArray[np.void]:
    """The rows in order of their starts; those that start together stay in their order."""
    return rows[np.argsort(rows["start"], kind="stable")]
