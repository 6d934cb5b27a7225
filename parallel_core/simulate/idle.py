"""Idle time of ranks in a simulated or measured step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.analysis.rows import durations
from parallel_core.schedule.ir import COMPUTE


class Idle(NamedTuple):
    """Nanoseconds between a rank's first and last compute operation: working, and not."""

    busy: int
    idle: int


def idle_times(spans: Mapping[int, NDArray[np.void]]) -> dict[int, Idle]:
    """Busy and idle time of each rank that computes; recomputation is inside BW and not counted twice."""
    kinds = [int(kind) for kind in COMPUTE if kind.name != "R"]
    out = {}
    for rank, rows in spans.items():
        own = rows[np.isin(rows["kind"], kinds)]
        if len(own):
            busy = int(durations(own).sum())
            out[rank] = Idle(busy, int(own["end"].max() - own["start"].min()) - busy)
    return out


def bubble(spans: Mapping[int, NDArray[np.void]]) -> float:
    """Idle over busy time on the worst rank: (p - 1) / m for GPipe and 1F1B with equal stages."""
    return max((times.idle / times.busy for times in idle_times(spans).values() if times.busy), default=0.0)
