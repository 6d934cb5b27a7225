"""The loss series of several runs: the points that are valid, and those that a later attempt has replaced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dashboard.runs.models import Run, SeriesChunk
from parallel_core.observe.records import POINT

PARITY_STEPS = 5_000
"""Losses are compared and drawn for at most this many first steps."""

Points = NDArray[np.void]
"""An array of POINT rows."""


def losses_of(runs: Sequence[Run]) -> tuple[dict[int, Points], dict[int, Points]]:
    """Returns two tables by run id, from one query: the loss points that are valid, and those that a later attempt
    replaced.

    From its first step on, a later attempt's points replace the earlier ones. Runs without replaced points are not in
    the second table.
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
