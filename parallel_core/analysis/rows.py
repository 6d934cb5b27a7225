"""Typed columns of span rows and the like: NumPy types a column of a structured array only as `Any`."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from parallel_core.analysis.sweep import Times


def starts(rows: NDArray[Any]) -> Times:
    begun: Times = rows["start"]
    return begun


def ends(rows: NDArray[Any]) -> Times:
    ended: Times = rows["end"]
    return ended


def durations(rows: NDArray[Any]) -> Times:
    """Nanoseconds from each row's start to its end."""
    return ends(rows) - starts(rows)
