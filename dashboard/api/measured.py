"""API operations on what was measured of a run: series, spans, what-ifs of a step, logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from django.http import HttpRequest
from ninja import Query, Router
from ninja.errors import HttpError

from dashboard.api import schemas as s
from dashboard.api import whatif as w
from dashboard.api.auth import READ
from dashboard.api.runs import RunId, run_of
from dashboard.api.steps import require_traced
from dashboard.json_values import finite_list
from dashboard.runs import selectors, services
from dashboard.runs.models import Run
from dashboard.runs.tracing import traces, whatif_replay
from dashboard.runs.tracing.trace_views import as_file
from dashboard.runs.tracing.whatif_range import UNKNOWN, likely
from parallel_core.analysis.quantities import listed_text
from parallel_core.observe.records import LANES, RANK_SERIES, RUN_SERIES, SHARE_SERIES
from parallel_core.schedule.ir import Kind

router = Router(tags=["runs"])
MAX_SPANS = 20_000
MAX_POINTS = 100_000
MOST_AT_ONCE = 1_000_000
"""Points of a series that are sent without a limit: some 50 MB."""
MAX_LOG_BYTES = 256 * 1024
SeriesName = Annotated[str, Query(max_length=60, pattern=r"^[A-Za-z0-9_.\-/]+$", description="e.g. loss, step_time")]


@router.get("/{run_id}/series", auth=READ, response={200: s.Envelope[s.SeriesOut], **s.refusals(*s.SEES)})
def series(
    request: HttpRequest,
    run_id: RunId,
    name: SeriesName = "loss",
    rank: s.Rank = 0,
    buckets: Annotated[int, Query(ge=0, le=10_000, description="0 = every point")] = 0,
    since_step: Annotated[int, Query(ge=-1, le=2**31 - 1, description="points behind this step only")] = -1,
    limit: Annotated[int | None, Query(ge=1, le=MAX_POINTS, description="the first so many of these points")] = None,
) -> Any:
    """One metric. With `buckets`, the least, greatest and last value of each of that many parts. Of more than a million
    points, a `limit` is to be given; while `shown` is less than `total`, the last step as `since_step` gives the next
    ones. `meta.begins`: the newest attempt with points of it (of held-out losses: of the loss) and their first step, as
    `2:20`; when it has changed, a retry has replaced points from that step on: get all of them anew. `meta.names`: the
    names of all series; 422 for another one. One that this run does not record has no points."""
    run = run_of(run_id)
    names = [*RUN_SERIES, *SHARE_SERIES, *RANK_SERIES]
    begins = selectors.beginnings(run, [name], [rank]).get((name, rank), "")  # before the points, which may be newer
    if name not in names and not begins:  # an older engine may have recorded others
        raise services.Invalid({"name": f"There is no series of this name; those here are {listed_text(names)}."})
    if buckets:
        found = selectors.series(run, name, rank, buckets, since_step)
    else:
        found = _every_point(run, name, rank, since_step, limit)
    data = {
        "name": name,
        "rank": rank,
        "step": found.step[:limit].tolist(),
        "time": found.time[:limit].tolist(),
        "value": finite_list(found.value[:limit]),
        "shown": min(limit or found.shown, found.shown),
        "total": found.total,
    }
    return {"data": data, "meta": {"begins": begins, "names": names}}


def _every_point(run: Run, name: str, rank: int, since_step: int, limit: int | None) -> selectors.Series:
    """All points behind `since_step`, or the first `limit` of them. Raises Invalid for too many without a limit."""
    found = selectors.first_after(run, name, rank, since_step, limit or MOST_AT_ONCE)
    if limit is None and found.shown < found.total:
        raise services.Invalid({"limit": f"There are {found.total} points: give a limit, and get them in parts."})
    return found


@router.get("/{run_id}/spans", auth=READ, response={200: s.Envelope[s.SpansOut], **s.refusals(*s.SEES)})
def spans(request: HttpRequest, run_id: RunId, step: s.Step | None = None) -> Any:
    """The spans of one traced step, the newest complete one by default; at most 20 000 spans in all, of `total` that
    its ranks recorded. `traced_steps`: the newest traced steps and those beside `step`, of `meta.traced` in all. 404
    if `step` was not traced; it names those that were."""
    run = run_of(run_id)
    choice = selectors.step_choice(run, step)
    require_traced(choice, whatif_replay.never_text(run))
    shown = selectors.newest_traced_step(run) if step is None else step
    found, recorded = ({}, 0) if shown is None else selectors.spans_and_total(run, shown)
    return {
        "data": {"step": shown, "traced_steps": choice.steps, **limited(found, recorded)},
        "meta": {"traced": choice.total},
    }


@router.get("/{run_id}/chrome", auth=READ, response={200: None, **s.refusals(*s.SEES)})
def chrome(request: HttpRequest, run_id: RunId, step: s.Step | None = None, gzip: s.Gzip = False) -> Any:
    """A traced step (the newest by default) as a Chrome trace, which Perfetto opens and `POST /traces` of any yard
    accepts. 404 if the run has no such traced step; it names those that it has."""
    run = run_of(run_id)
    require_traced(selectors.step_choice(run, step), whatif_replay.never_text(run))
    found = traces.trace(run, step)
    if found is None:
        raise HttpError(404, whatif_replay.absent_text(run, step))
    return as_file(found, "chrome-gz" if gzip else "chrome", f"run-{run_id}-step-{found.step}", found.about)


@router.get("/{run_id}/whatif", auth=READ, response={200: s.Envelope[w.WhatIfOut], **s.refusals(*s.SEES)})
def whatif(request: HttpRequest, run_id: RunId, change: w.Change) -> Any:
    """A traced step (by default the one nearest the run's median) replayed with a change, and the gain of each single
    change. 404 if `step` was not traced, 422 with a message by field if the step cannot be changed in this way."""
    asked, run = change.asked(), run_of(run_id)
    require_traced(selectors.step_choice(run, change.step), whatif_replay.never_text(run))
    try:
        trace = whatif_replay.replayable(run, change.step)
    except whatif_replay.CannotReplay as why:
        return {"data": w.nothing(change.step, str(why))}
    found, ideas = whatif_replay.answer(trace, asked), whatif_replay.ideas(trace)
    range_ = likely(trace, found.form.change(), found.made) if found.made else UNKNOWN
    return {"data": w.answer(trace.step, asked, found.form, found.times, found.sentence, ideas, likely=range_)}


@router.get("/{run_id}/log", auth=READ, response={200: s.Envelope[s.LogOut], **s.refusals(*s.SEES)})
def log(
    request: HttpRequest,
    run_id: RunId,
    rank: s.Rank = 0,
    start: Annotated[int, Query(ge=-(2**40), le=2**40, description="byte; below 0 from the end")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_LOG_BYTES)] = 64 * 1024,
) -> Any:
    """Bytes [start, end) of a rank's stdout and stderr, of whole characters: at least one, also where a `limit`
    below 4 has no room for it. Continue at `end` until it equals `total`; begin again at 0 when `attempt` has
    changed."""
    run = run_of(run_id)
    part = selectors.log(run, rank, start, limit)
    data = {name: getattr(part, name) for name in ("attempt", "text", "start", "end", "total")} | {"rank": rank}
    return {"data": data, "meta": {"ranks": selectors.log_ranks(run)}}


def limited(found: Mapping[int, np.ndarray], recorded: int = 0) -> dict[str, Any]:
    """The first MAX_SPANS spans, rank by rank, with their number and the number of all spans, also of those `recorded`
    that are not among the found."""
    left, ranks = MAX_SPANS, []
    for rank, rows in sorted(found.items()):
        ranks.append(_columns(rank, rows[:left]))
        left -= min(left, len(rows))
    return {"ranks": ranks, "shown": MAX_SPANS - left, "total": max(recorded, sum(map(len, found.values())))}


def _columns(rank: int, rows: np.ndarray) -> dict[str, Any]:
    names = ("stage", "micro_batch", "replica", "start", "end", "bytes")
    return {
        "rank": rank,
        "kind": [Kind(kind).name for kind in rows["kind"].tolist()],
        "lane": [LANES[lane] for lane in rows["lane"].tolist()],
        **{name: rows[name].tolist() for name in names},
    }
