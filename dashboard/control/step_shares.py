"""Where the time of a traced step went, as points: computed when the last rank's spans of that step are stored."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
from django.db.models import Max

from dashboard.runs.models import Attempt, SeriesChunk, SpanChunk
from parallel_core.analysis.meters import SHARES, step_shares
from parallel_core.layout import Layout
from parallel_core.observe.records import POINT, SPAN
from parallel_core.spec import RunSpec

log = logging.getLogger(__name__)

MOST_SPANS = 50_000
"""Steps with more are left to the pages that ask for them, because the controller has others to serve."""


def share_points(attempt: Attempt, steps: Mapping[int, float]) -> dict[tuple[int, str], list[np.ndarray]]:
    """(rank 0, series) -> one point for each of `steps` whose spans have arrived from all ranks, in step order.

    `steps` = step -> when it was reported (unix seconds). A step that already has its points (its spans came twice)
    gets none, nor does one with inconsistent spans.
    """
    mine = SeriesChunk.objects.filter(attempt=attempt, rank=0, name=next(iter(SHARES)))
    last = mine.aggregate(last=Max("last_step"))["last"]
    points: dict[tuple[int, str], list[np.ndarray]] = {}
    layout = Layout.of(RunSpec.stored(attempt.run.spec))
    for step in sorted(step for step in steps if last is None or step > last):
        for name, value in _shares(attempt, step, layout).items():
            points.setdefault((0, name), []).append(np.array([(step, steps[step], value)], POINT))
    return points


def _shares(attempt: Attempt, step: int, layout: Layout) -> dict[str, float]:
    """Shares of one step by series; {} if spans are missing, too many or inconsistent."""
    chunks = SpanChunk.objects.filter(attempt=attempt, step=step, count__gt=0)
    counts = list(chunks.values_list("count", flat=True))
    if len(counts) < layout.world or sum(counts) > MOST_SPANS:
        return {}
    try:
        return step_shares({chunk.rank: np.frombuffer(bytes(chunk.data), SPAN) for chunk in chunks}, layout)
    except (ValueError, KeyError, IndexError) as error:
        log.warning("no shares of step %s of attempt %s: %r", step, attempt.pk, error)
        return {}
