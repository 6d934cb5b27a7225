"""API operations on traces of jobs that were not launched here."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import File, Form, Path, Router, Status
from ninja.files import UploadedFile

from dashboard.api import schemas as s
from dashboard.api import trace_schemas as t
from dashboard.api import whatif as w
from dashboard.api.auth import READ, SUBMIT, require_member
from dashboard.api.idempotency import Key, contents, made_once
from dashboard.api.measured import limited
from dashboard.api.paging import LISTS, PageNumber, PerPage, page_of, part_of
from dashboard.api.steps import require_traced
from dashboard.runs.tracing.trace_views import as_file
from dashboard.runs.tracing.traced import StepChoice
from dashboard.traces import page, services
from dashboard.traces.models import Trace, TraceState
from dashboard.traces.spans import about, step_of
from dashboard.traces.spans import spans as spans_of
from dashboard.traces.whatif_pipeline import of_trace
from parallel_core import limits

router = Router(tags=["traces"])
TRACES = Trace.objects.select_related("owner")
TraceId = Annotated[s.Id, Path(description="number of the trace")]
Name = Annotated[
    str, Form(max_length=limits.MAX_NAME, pattern=r"^[^\x00]*$", description="empty: the name of the first file")
]


@router.get("", auth=READ, response={200: s.Envelope[list[t.TraceOut]], **s.refusals(*LISTS)})
def list_traces(
    request: HttpRequest,
    page: PageNumber = 1,
    per_page: PerPage = 50,
) -> Any:
    """Traces, newest first."""
    rows = Trace.objects.select_related("owner")
    some, meta = page_of(rows, page, per_page)
    return {"data": [_record(row) for row in some], "meta": meta}


@router.post(
    "",
    auth=SUBMIT,
    response={
        200: s.Envelope[t.TraceDetail],
        201: s.Envelope[t.TraceDetail],
        **s.refusals(400, 401, 403, 413, 422),
    },
)
def upload_trace(
    request: HttpRequest,
    files: Annotated[
        list[UploadedFile],
        File(
            description="Chrome traces of torch.profiler, one a rank, or steps of one run that a yard exported: .json, "
            f".json.gz; {services.MAX_SIZE} in all"
        ),
    ],
    name: Name = "",
    key: Key = None,
) -> Any:
    """Stores the files (multipart form, field `files` for each rank) and queues them. Get the trace until its `state`
    shows that they have been read."""
    require_member(request)
    asked = contents(name, files) if key else b""
    make = partial(services.upload, owner=request.user, name=name, files=files)
    status, trace = made_once(request, key, asked, TRACES, lambda also: make(also=also))
    return Status(status, {"data": _detail(trace)})


@router.get("/{trace_id}", auth=READ, response={200: s.Envelope[t.TraceDetail], **s.refusals(*s.SEES)})
def get_trace(request: HttpRequest, trace_id: TraceId) -> Any:
    """One trace with its files, ranks, steps and notes; of many steps, those that its page offers."""
    return {"data": _detail(_trace(trace_id))}


@router.get(
    "/{trace_id}/steps", auth=READ, response={200: s.Envelope[list[t.TraceStep]], **s.refusals(*LISTS, *s.SEES)}
)
def list_steps(request: HttpRequest, trace_id: TraceId, page: PageNumber = 1, per_page: PerPage = 50) -> Any:
    """The steps of a trace, ascending, with the number of their spans; none until it has been read."""
    trace = _trace(trace_id)
    some, meta = part_of(trace.steps, page, per_page)
    ranks = sorted((int(rank), own["steps"]) for rank, own in trace.ranks.items())
    data = [{"step": step, "spans": {rank: own[str(step)] for rank, own in ranks if str(step) in own}} for step in some]
    return {"data": data, "meta": meta}


@router.get("/{trace_id}/analysis", auth=READ, response={200: s.Envelope[t.TraceAnalysis], **s.refusals(*s.SEES)})
def analysis(request: HttpRequest, trace_id: TraceId, step: s.Step | None = None) -> Any:
    """How a step's time is spent (the middle step by default), the findings about it, and the largest operations. 404
    until the trace has been read, and for a step that it does not have. `meta.steps`: the newest steps and those
    beside this one, of `meta.traced` in all."""
    trace, shown = _step(trace_id, step)
    found, judged = step_of(trace, shown), page.findings(trace, shown)
    data = {
        "step": shown,
        "verdict": page.sentence(trace, shown, found),
        "accounts": [
            {"rank": rank, "total": parts.total, "components": parts.as_dict()}
            for rank, parts in sorted(found.breakdown.items())
        ],
        "findings": [
            {name: getattr(one, name) for name in ("rule", "title", "evidence", "change", "effect_ns", "rank")}
            | {"address": address}
            for one, _, _, address in judged.found
        ],
        "why_not": judged.why_not,
        "rules": judged.rules,
        "largest": page.largest(trace),
    }
    choice = StepChoice.among(trace.steps, shown)
    return {"data": data, "meta": {"steps": choice.steps, "traced": choice.total}}


@router.get("/{trace_id}/spans", auth=READ, response={200: s.Envelope[s.SpansOut], **s.refusals(*s.SEES)})
def spans(request: HttpRequest, trace_id: TraceId, step: s.Step | None = None) -> Any:
    """The spans of one step, the middle one by default; at most 20 000 spans in all. `traced_steps`: the newest steps
    and those beside this one, of `meta.traced` in all."""
    trace, shown = _step(trace_id, step)
    choice = StepChoice.among(trace.steps, shown)
    data = {"step": shown, "traced_steps": choice.steps, **limited(spans_of(trace, shown))}
    return {"data": data, "meta": {"traced": choice.total}}


@router.get("/{trace_id}/chrome", auth=READ, response={200: None, **s.refusals(*s.SEES)})
def chrome(request: HttpRequest, trace_id: TraceId, step: s.Step | None = None, gzip: s.Gzip = False) -> Any:
    """A step (the middle one by default) as a Chrome trace, which Perfetto opens and `POST /traces` of any yard
    accepts."""
    trace, shown = _step(trace_id, step)
    form, name = "chrome-gz" if gzip else "chrome", f"trace-{trace_id}-step-{shown}"
    return as_file(step_of(trace, shown), form, name, about(trace, shown))


@router.get("/{trace_id}/whatif", auth=READ, response={200: s.Envelope[w.WhatIfOut], **s.refusals(*s.SEES)})
def whatif(request: HttpRequest, trace_id: TraceId, change: w.Change) -> Any:
    """A step (the middle one by default) replayed with a change, and the gain of each single change. If the pipeline
    could be recovered, the same changes as for a run are possible. 422 with a message by field if the step cannot be
    changed in this way."""
    trace, shown = _step(trace_id, change.step)
    asked = change.asked()
    made = of_trace(trace, shown, asked)
    if made.form is None or made.times is None:
        return {"data": w.nothing(shown, made.why_not)}
    return {"data": w.answer(shown, asked, made.form, made.times, made.sentence, made.ideas, made.known)}


@router.delete("/{trace_id}", auth=SUBMIT, response={204: None, **s.refusals(*s.SEES)})
def delete_trace(request: HttpRequest, trace_id: TraceId) -> Any:
    """Deletes a trace with all that was read from it; only for its owner and admins."""
    require_member(request)
    services.delete(trace=_trace(trace_id), user=request.user)
    return Status(204, None)


def _trace(pk: int) -> Trace:
    return get_object_or_404(TRACES, pk=pk)


def _step(pk: int, step: int | None) -> tuple[Trace, int]:
    """The trace and the requested step, by default the middle one. Raises Http404 if the trace is not ready, HttpError
    404 with the nearest step if it lacks this one."""
    trace = get_object_or_404(Trace, pk=pk, state=TraceState.READY)
    steps = trace.steps
    shown = steps[len(steps) // 2] if step is None else step
    require_traced(StepChoice.among(steps, shown), "This trace has no step.")
    return trace, shown


def _record(trace: Trace) -> dict[str, Any]:
    same = ("id", "name", "state", "detail", "size", "read", "created_at")
    steps = trace.steps
    choice = StepChoice.among(steps, steps[len(steps) // 2] if steps else None)
    return {name: getattr(trace, name) for name in same} | {
        "owner": trace.owner.get_username(),
        "ranks": len(trace.ranks),
        "steps": choice.steps,
        "step_count": choice.total,
        "broken": trace.injected,
    }


def _detail(trace: Trace) -> dict[str, Any]:
    record = _record(trace)
    files = [
        {
            "rank": int(rank),
            "file": own["file"],
            "device": own["device"],
            "operations": own["raw"],
            "spans": {step: own["steps"][str(step)] for step in record["steps"] if str(step) in own["steps"]},
        }
        for rank, own in sorted(trace.ranks.items(), key=lambda item: int(item[0]))
    ]
    return record | {"notes": trace.notes, "files": files, "spec": trace.recorded.get("spec")}
