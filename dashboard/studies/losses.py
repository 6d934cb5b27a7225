"""The loss series of several runs at once: what holds, and what a later attempt has replaced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dashboard.runs.models import Run, SeriesChunk
from parallel_core.observe.records import POINT

PARITY_STEPS = 5_000
"""Losses are compared, and drawn, over at most the first so many steps."""

Points = NDArray[np.void]
"""POINT rows."""


def losses_of(runs: Sequence[Run]) -> tuple[dict[int, Points], dict[int, Points]]:
    """Two tables by run id, read by one query: the loss points that hold, and those that a later attempt replaced.

    A later attempt's points hold from its first step on; runs without replaced points are not in the second table.
    """
    chunks = SeriesChunk.objects.filter(
        attempt__run__in=[run.pk for run in runs], name="loss", rank=0, first_step__lt=PARITY_STEPS
    ).order_by("attempt__run", "attempt__number", "first_step")
    held: dict[int, Points] = {}
    replaced: dict[int, Points] = {}
    for run, first, data in chunks.values_list("attempt__run", "first_step", "data"):
        before = held.get(run, np.empty(0, POINT))
        kept = before["step"] < first
        if not kept.all():
            replaced[run] = np.concatenate([replaced.get(run, np.empty(0, POINT)), before[~kept]])
        held[run] = np.concatenate([before[kept], np.frombuffer(bytes(data), POINT)])
    return held, replaced
