"""Where the time of a step went, as points: computed when the last rank's records of that step arrive."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
from django.db.models import Max

from dashboard.runs.models import Attempt, OpenWaits, SeriesChunk, SpanChunk
from parallel_core.analysis.meters import SHARES, every_step, step_shares
from parallel_core.analysis.step_waits import StepWaits
from parallel_core.layout import Layout
from parallel_core.observe.records import POINT, SPAN
from parallel_core.spec import RunSpec

log = logging.getLogger(__name__)

MOST_SPANS = 50_000
"""Traced steps with more are left to the pages that ask for them, because the controller has others to serve."""
MOST_OPEN = 4 << 20
"""Bytes of a rank's steps that wait for other ranks; beyond that the oldest steps stay without a point."""

Points = dict[tuple[int, str], list[np.ndarray]]
"""(rank 0, series) -> its new POINT rows."""
Found = dict[int, list[StepWaits]]
"""Rank -> its `waits` records."""


def share_points(attempt: Attempt, found: Mapping[int, list[StepWaits]]) -> Points:
    """A point for each step whose `waits` records have now arrived from all ranks, in step order.

    `found` are the new records. What has no counterpart yet is kept in OpenWaits; what can have none any more, because
    a later step is complete, is dropped, as is a step that is already complete (its records came twice).
    """
    rows = {row.rank: row for row in OpenWaits.objects.filter(attempt=attempt)}
    parts = {rank: [StepWaits.unpack(bytes(row.data), row.steps)] for rank, row in rows.items()}
    for rank, new in found.items():
        parts[rank] = [*parts.get(rank, []), *new]
    done = _last_step(attempt)
    behind = {rank: _behind(StepWaits.chain(of_rank), done) for rank, of_rank in parts.items()}
    try:
        steps, values = every_step(behind, Layout.of(RunSpec.stored(attempt.run.spec)))
    except (ValueError, KeyError, IndexError) as error:
        log.warning("no shares of some steps of attempt %s: %r", attempt.pk, error)
        OpenWaits.objects.filter(attempt=attempt).delete()
        return {}
    _keep_open(attempt, behind, int(steps[-1]) if len(steps) else done)
    if not len(steps):
        return {}
    sums = behind[0].sums
    points = np.empty(len(steps), POINT)
    points["step"], points["time"] = steps, sums["time"][np.isin(sums["step"], steps)]
    out: Points = {}
    for name, value in values.items():
        points["value"] = value
        out[0, name] = [points.copy()]
    return out


def _last_step(attempt: Attempt) -> int:
    """The last step that has its points; -1 without one."""
    mine = SeriesChunk.objects.filter(attempt=attempt, rank=0, name=next(iter(SHARES)))
    last = mine.aggregate(last=Max("last_step"))["last"]
    return -1 if last is None else int(last)


def _behind(one: StepWaits, step: int) -> StepWaits:
    """The steps after `step`, each after all before it."""
    numbers = one.sums["step"]
    highest = np.concatenate([[step], np.maximum.accumulate(numbers)[:-1]])
    return one.among(numbers > np.maximum(highest, step))


def _keep_open(attempt: Attempt, found: Mapping[int, StepWaits], done: int) -> None:
    """Stores what of `found` comes after step `done`, in place of what was stored before."""
    OpenWaits.objects.filter(attempt=attempt).delete()
    rows = []
    for rank, one in found.items():
        rest = _newest(_behind(one, done))
        if len(rest.sums):
            rows.append(OpenWaits(attempt=attempt, rank=rank, steps=len(rest.sums), data=rest.pack()))
    OpenWaits.objects.bulk_create(rows)


def _newest(one: StepWaits) -> StepWaits:
    """As many of the newest steps as MOST_OPEN allows."""
    sizes = one.sums.itemsize + one.rows.itemsize * one.sums["count"].astype(np.int64)
    return one.among(np.cumsum(sizes[::-1])[::-1] <= MOST_OPEN)


def traced_share_points(attempt: Attempt, steps: Mapping[int, float]) -> Points:
    """A point for each of the traced `steps` whose spans have arrived from all ranks, in step order.

    For steps without `waits` records, as from an older engine. `steps` = step -> when it was reported (unix seconds). A
    step that already has its points (its spans came twice) gets none, nor does one with inconsistent spans.
    """
    last = _last_step(attempt)
    points: Points = {}
    layout = Layout.of(RunSpec.stored(attempt.run.spec))
    for step in sorted(step for step in steps if step > last):
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
