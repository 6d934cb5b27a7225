"""API operations on runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from django.http import Http404, HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Path, Query, Router, Status
from ninja.errors import HttpError

from dashboard.api import schemas as s
from dashboard.api import whatif as w
from dashboard.api.auth import READ, SUBMIT, require_member
from dashboard.api.paging import LISTS, PageNumber, page_of
from dashboard.control.dispatch import resume_from
from dashboard.json_values import clean, finite_list
from dashboard.runs import generating, removal, resuming, selectors, services, submission, traces, whatif_replay
from dashboard.runs.list_views import as_row
from dashboard.runs.models import Run
from dashboard.runs.trace_views import as_file
from parallel_core.observe.records import LANES, RANK_SERIES, RUN_SERIES, SHARE_SERIES
from parallel_core.schedule.ir import Kind

router = Router(tags=["runs"])
MAX_SPANS = 20_000
MAX_LOG_BYTES = 256 * 1024
RunId = Annotated[s.Id, Path(description="number of the run")]
Sort = Annotated[
    str,
    Query(
        pattern=f"^-?({'|'.join(selectors.SORTS)})$",
        description="a column, with - the other way; those without it last",
    ),
]
SeriesName = Annotated[str, Query(max_length=60, pattern=r"^[A-Za-z0-9_.\-/]+$", description="e.g. loss, step_time")]


@router.post("", auth=SUBMIT, response={201: s.Envelope[s.RunDetail], **s.refusals(400, 401, 403, 413, 422)})
def submit(request: HttpRequest, payload: s.SubmitIn) -> Any:
    """Queues a run. 422 with a message by field if the spec is invalid, or no worker has the devices or the memory."""
    require_member(request)
    named = payload.resume_from
    run = submission.submit(
        owner=request.user,
        spec=payload.spec.model_dump(mode="json"),
        name=payload.name,
        tags=payload.tags,
        retries=payload.retries,
        host_count=payload.hosts,
        anyway=payload.anyway,
        resume_from={"run": named.run, "step": named.step} if named else None,
    )
    return Status(201, {"data": detail(run)})


@router.get("", auth=READ, response={200: s.Envelope[list[s.RunOut]], **s.refusals(*LISTS)})
def list_runs(
    request: HttpRequest,
    q: s.Text = "",
    state: Annotated[list[s.StateName], Query(max_length=8)] = [],  # noqa: B006
    owner: s.Text = "",
    strategy: s.Text = "",
    tag: s.Text = "",
    study: s.Id | None = None,
    sort: Sort = "-id",
    page: PageNumber = 1,
    per_page: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Any:
    """Runs, newest first unless sorted otherwise. `meta` has count, page, per_page."""
    filters = selectors.Filters(q.strip(), tuple(state), owner, strategy, tag, study, sort)
    rows = selectors.list_runs(filters).defer("spec", "summary")
    some, meta = page_of(rows, page, per_page)
    return {"data": [record(run) for run in some], "meta": meta}


@router.get("/{run_id}", auth=READ, response={200: s.Envelope[s.RunDetail], **s.refusals(*s.SEES)})
def get_run(request: HttpRequest, run_id: RunId) -> Any:
    """One run with its spec and, once it has ended, its summary."""
    return {"data": detail(_run(run_id))}


@router.post("/{run_id}/cancel", auth=SUBMIT, response={200: s.Envelope[s.RunDetail], **s.refusals(*s.SEES)})
def cancel_run(request: HttpRequest, run_id: RunId) -> Any:
    """Requests that the run is stopped. A run that has ended is not changed; a second request has no effect."""
    require_member(request)
    return {"data": detail(services.request_cancel(run=_run(run_id), user=request.user))}


@router.delete("/{run_id}", auth=SUBMIT, response={204: None, **s.refusals(*s.SEES)})
def delete_run(request: HttpRequest, run_id: RunId) -> Any:
    """Deletes a run that has ended, with all its data and its checkpoints on the workers' disks; only for its owner and
    admins. 422 if it has not ended, or another run resumes from its checkpoint."""
    require_member(request)
    removal.delete(runs=[_run(run_id).pk], user=request.user)
    return Status(204, None)


@router.post(
    "/{run_id}/generate",
    auth=SUBMIT,
    response={201: s.Envelope[s.RunDetail], **s.refusals(400, 401, 403, 404, 413, 422)},
)
def generate(request: HttpRequest, run_id: RunId, payload: s.GenerateIn) -> Any:
    """Queues a run that generates text from a checkpoint of this one. 422 with a message by field."""
    require_member(request)
    run = _run(run_id)
    asked = payload.model_dump(exclude={"step", "tp", "pp", "dp", "name", "ids", "prompt"})
    step = payload.step if payload.step is not None else resuming.first_choice(run) or 0
    vocab = run.spec.get("model", {}).get("vocab", 0)
    if payload.prompt and vocab > 256:
        raise services.Invalid({"prompt": f"The model has {vocab} tokens: give their numbers as ids."})
    prompt = payload.ids or generating.prompt_tokens(payload.prompt, 256)
    split = generating.Split(payload.tp, payload.pp, payload.dp)
    made = generating.submit(
        owner=request.user, run=run, step=step, request={**asked, "prompt": prompt}, split=split, name=payload.name
    )
    return Status(201, {"data": detail(made)})


@router.get("/{run_id}/series", auth=READ, response={200: s.Envelope[s.SeriesOut], **s.refusals(*s.SEES)})
def series(
    request: HttpRequest,
    run_id: RunId,
    name: SeriesName = "loss",
    rank: s.Rank = 0,
    buckets: Annotated[int, Query(ge=0, le=10_000, description="0 = every point")] = 0,
    since_step: Annotated[int, Query(ge=-1, le=2**31 - 1)] = -1,
) -> Any:
    """One metric. With `buckets`, the least, greatest and last value of each of that many parts. `meta.names`: the
    names of all series."""
    found = selectors.series(_run(run_id), name, rank, buckets, since_step)
    data = {
        "name": name,
        "rank": rank,
        "step": found.step.tolist(),
        "time": found.time.tolist(),
        "value": finite_list(found.value),
        "shown": found.shown,
        "total": found.total,
    }
    return {"data": data, "meta": {"names": [*RUN_SERIES, *SHARE_SERIES, *RANK_SERIES]}}


@router.get("/{run_id}/spans", auth=READ, response={200: s.Envelope[s.SpansOut], **s.refusals(*s.SEES)})
def spans(request: HttpRequest, run_id: RunId, step: s.Step | None = None) -> Any:
    """The spans of one traced step, the newest complete one by default; at most 20 000 spans in all, of `total` that
    its ranks recorded. `traced_steps`: the newest traced steps and those beside `step`, of `meta.traced` in all."""
    run = _run(run_id)
    choice = selectors.step_choice(run, step)
    shown = selectors.newest_traced_step(run) if step is None else step
    found, recorded = ({}, 0) if shown is None else selectors.spans_and_total(run, shown)
    return {
        "data": {"step": shown, "traced_steps": choice.steps, **limited(found, recorded)},
        "meta": {"traced": choice.total},
    }


@router.get("/{run_id}/chrome", auth=READ, response={200: None, **s.refusals(*s.SEES)})
def chrome(request: HttpRequest, run_id: RunId, step: s.Step | None = None, gzip: s.Gzip = False) -> Any:
    """A traced step (the newest by default) as a Chrome trace, which Perfetto opens and `POST /traces` of any yard
    accepts. 404 if the run has no such traced step."""
    run = _run(run_id)
    found = traces.trace(run, step)
    if found is None:
        dropped = selectors.dropped_text(run, step)
        raise HttpError(404, dropped) if dropped else Http404
    return as_file(found, "chrome-gz" if gzip else "chrome", f"run-{run_id}-step-{found.step}", found.about)


@router.get("/{run_id}/whatif", auth=READ, response={200: s.Envelope[w.WhatIfOut], **s.refusals(*s.SEES)})
def whatif(request: HttpRequest, run_id: RunId, change: w.Change) -> Any:
    """A traced step (the newest by default) replayed with a change, and the gain of each single change. 422 with a
    message by field if the step cannot be changed in this way."""
    asked = change.asked()
    try:
        trace = whatif_replay.replayable(_run(run_id), change.step)
    except whatif_replay.CannotReplay as why:
        return {"data": w.nothing(change.step, str(why))}
    found, ideas = whatif_replay.answer(trace, asked), whatif_replay.ideas(trace)
    return {"data": w.answer(trace.step, asked, found.form, found.times, found.sentence, ideas)}


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
    run = _run(run_id)
    part = selectors.log(run, rank, start, limit)
    data = {name: getattr(part, name) for name in ("attempt", "text", "start", "end", "total")} | {"rank": rank}
    return {"data": data, "meta": {"ranks": selectors.log_ranks(run)}}


def _run(pk: int) -> Run:
    return get_object_or_404(Run.objects.select_related("owner"), pk=pk)


def record(run: Run) -> dict[str, Any]:
    return as_row(run)


def detail(run: Run) -> dict[str, Any]:
    """All fields of one run, as RunDetail."""
    return record(run) | {
        "spec": run.spec,
        "summary": clean(run.summary),
        "retries_left": run.retries_left,
        "cancel_requested_at": run.cancel_requested_at,
        "resume_from": resume_from(run),
        "checkpoints": resuming.sound(run),
        "task": run.task,
        "generated": clean(generating.api_record(run)),
        "waits_for": selectors.waiting(run).sentence,
        "hosts": run.host_count,
        "placed": attempt.devices if (attempt := selectors.attempt_of(run)) else [],
    }


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
