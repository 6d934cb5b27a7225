"""Where the time of a step went, as points: computed when the last rank's records of that step arrive."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np
from django.db.models import Max, QuerySet

from dashboard.runs.models import Attempt, OpenWaits, SeriesChunk, SpanChunk
from parallel_core.analysis.meters import SHARES, every_step, step_shares
from parallel_core.analysis.step_waits import StepWaits
from parallel_core.layout import Layout
from parallel_core.observe.records import POINT, SPAN
from parallel_core.spec import RunSpec

log = logging.getLogger(__name__)

MOST_SPANS = 50_000
"""Traced steps with more are left to the pages that ask for them, because the controller has others to serve."""
MOST_OPEN = 64 << 20
"""Bytes of an attempt's steps that wait for other ranks, an equal part for each rank; beyond that the oldest steps stay
without a point."""
LEAST_OPEN = 4 << 20
"""Bytes that each rank may have beyond its part of MOST_OPEN: with dozens of ranks, that would hold less than comes at
once."""
MOST_TOTAL = 256 << 20
"""Bytes of an attempt's steps that wait, in any case: over 64 ranks have less than LEAST_OPEN each."""
ROW_BYTES = 128 << 10
"""Bytes from which a row takes no more steps; one has about twice as many at most, unless a single step is larger."""
LEAST_ROWS = 16
"""A row that has this part of a rank's bound takes no more, either, because at the bound whole rows go."""

Points = dict[tuple[int, str], list[np.ndarray]]
"""(rank, series) -> its new POINT rows; here of rank 0."""
Found = dict[int, list[StepWaits]]
"""Rank -> its `waits` records."""


def share_points(attempt: Attempt, found: Mapping[int, list[StepWaits]]) -> Points:
    """A point for each step whose `waits` records have now arrived from all ranks, in step order.

    `found` are the new records. Those of steps that a rank has yet to reach are kept in OpenWaits. A rank's steps
    ascend: what is dropped is a step that another rank has passed without it, or that came twice.
    """
    layout = Layout.of(RunSpec.stored(attempt.run.spec))
    held, done = OpenWaits.objects.filter(attempt=attempt), _last_step(attempt)
    reached = dict(held.order_by().values_list("rank").annotate(last=Max("last_step")))
    new = {rank: _behind(StepWaits.chain(parts), reached.get(rank, done)) for rank, parts in found.items()}
    reached |= {rank: int(one.sums["step"][-1]) for rank, one in new.items() if len(one.sums)}
    upto = min(reached.values()) if len(reached) == layout.world else done
    try:
        points = _points(_whole(held.filter(first_step__lte=upto), new, done, upto), layout) if upto > done else {}
    except (ValueError, KeyError, IndexError) as error:
        log.warning("no shares of some steps of attempt %s: %r", attempt.pk, error)
        held.delete()
        return {}
    held.filter(last_step__lte=upto).delete()
    _keep_open(attempt, new, upto, _bound(layout.world))
    return points


def _bound(world: int) -> int:
    """Bytes of steps that wait which each of `world` ranks may have; all together at most MOST_TOTAL."""
    return max(MOST_OPEN // world, min(LEAST_OPEN, MOST_TOTAL // world))


def _whole(rows: QuerySet[OpenWaits], new: Mapping[int, StepWaits], done: int, upto: int) -> dict[int, StepWaits]:
    """The steps after `done` up to `upto` of each rank, stored and new. Raises ValueError if a row is spoilt."""
    parts: Found = {}
    for row in rows:
        parts.setdefault(row.rank, []).append(StepWaits.unpack(bytes(row.data), row.steps))
    for rank, one in new.items():
        parts.setdefault(rank, []).append(one)
    return {rank: _behind(StepWaits.chain(own), done).cut(upto)[0] for rank, own in parts.items()}


def _points(found: Mapping[int, StepWaits], layout: Layout) -> Points:
    steps, values = every_step(found, layout)
    if not len(steps):
        return {}
    sums = found[0].sums
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
    last = mine.order_by("-first_step").values_list("last_step", flat=True).first()
    return -1 if last is None else int(last)


def _behind(one: StepWaits, step: int) -> StepWaits:
    """The steps after `step`, each after all before it."""
    numbers = one.sums["step"]
    highest = np.concatenate([[step], np.maximum.accumulate(numbers)[:-1]])
    return one.among(numbers > np.maximum(highest, step))


def _keep_open(attempt: Attempt, found: Mapping[int, StepWaits], upto: int, most: int) -> None:
    """Stores the steps of `found` after `upto`, and deletes the oldest rows of these ranks beyond `most` bytes a rank.

    They join the rank's newest rows that are not full (`_joined`), whose `data` alone is read. So a rank has at most
    `most` / ROW_BYTES rows (LEAST_ROWS, if that is more) and a few that are not full, however many transactions came.
    """
    found = {rank: rest for rank, one in found.items() if len((rest := one.cut(upto)[1]).sums)}
    full = max(1, min(ROW_BYTES, most // LEAST_ROWS))
    held = OpenWaits.objects.filter(attempt=attempt, rank__in=found)
    sizes: dict[int, list[tuple[int, int]]] = {rank: [] for rank in found}
    for pk, rank, size in held.order_by("-pk").values_list("pk", "rank", "size"):
        sizes[rank].append((pk, size))
    joined = {rank: _joined(sizes[rank], _size(one), full) for rank, one in found.items()}
    gone = [pk for pks in joined.values() for pk in pks]
    parts = _stored(held.filter(pk__in=gone))
    rows = list[OpenWaits]()
    for rank, one in found.items():
        whole = _newest(StepWaits.chain([*parts.get(rank, ()), one]).cut(upto)[1], most)
        rows += [_filled(OpenWaits(attempt=attempt, rank=rank), part) for part in _rows(whole, full)]
        gone += _beyond(sizes[rank][len(joined[rank]) :], most - _size(whole))
    OpenWaits.objects.filter(pk__in=gone).delete()
    OpenWaits.objects.bulk_create(rows)


def _joined(sizes: Sequence[tuple[int, int]], size: int, full: int) -> list[int]:
    """Which rows, of (pk, bytes) from the newest on, `size` new bytes are joined with: those below `full` bytes, as
    long as the next has less than twice what there is by then.

    So each row that is left has at least twice as much as the next newer one, or is full; and a step is rewritten only
    when its row at least grows by half: a few times, not in each transaction (as a binary counter carries).
    """
    found = list[int]()
    for pk, own in sizes:
        if own >= min(full, 2 * size):
            break
        found.append(pk)
        size += own
    return found


def _stored(rows: QuerySet[OpenWaits]) -> Found:
    """The steps of these rows by rank, in order, without those of spoilt rows."""
    found: Found = {}
    for row in rows:
        try:
            found.setdefault(row.rank, []).append(StepWaits.unpack(bytes(row.data), row.steps))
        except ValueError as error:
            log.warning("steps %s to %s of rank %s: %s", row.first_step, row.last_step, row.rank, error)
    return found


def _beyond(sizes: Sequence[tuple[int, int]], room: int) -> list[int]:
    """Which rows, of (pk, bytes) from the newest on, do not fit `room` bytes with all newer ones."""
    ends = accumulate(size for _, size in sizes)
    return [pk for (pk, _), end in zip(sizes, ends, strict=True) if end > room]


def _rows(one: StepWaits, full: int) -> Iterator[StepWaits]:
    """Parts of `full` bytes, up to twice that, if the steps are about equal; the last may be smaller."""
    return one.parts(-(-len(one.sums) // max(1, _size(one) // full)) or 1)


def _size(one: StepWaits) -> int:
    return one.sums.nbytes + one.rows.nbytes


def _filled(row: OpenWaits, one: StepWaits) -> OpenWaits:
    """The row with these steps, at least one."""
    steps, row.data = one.sums["step"], one.pack()
    row.first_step, row.last_step = int(steps[0]), int(steps[-1])
    row.steps, row.size = len(steps), len(row.data)
    return row


def _newest(one: StepWaits, most: int) -> StepWaits:
    """As many of the newest steps as fit `most` bytes."""
    sizes = one.sums.itemsize + one.rows.itemsize * one.sums["count"].astype(np.int64)
    return one.among(np.cumsum(sizes[::-1])[::-1] <= most)


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
