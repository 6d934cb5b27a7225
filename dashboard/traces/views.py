"""Pages of imported traces: the list, the upload, the page of one trace and its parts, export, and delete."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe
from django.views.decorators.vary import vary_on_headers

from dashboard.accounts.guards import member_required, token_may_read
from dashboard.accounts.roles import may_change, may_submit
from dashboard.charts.theme import LEGEND
from dashboard.charts.timeline import lit_of, window_of
from dashboard.numbers import number
from dashboard.runs.page import accounts
from dashboard.runs.services import Invalid
from dashboard.runs.stored import blob_bytes, sentence_of
from dashboard.runs.tracing.trace_views import FORMS, as_file
from dashboard.runs.tracing.traced import StepChoice
from dashboard.traces import page, services
from dashboard.traces.models import Trace, TraceState
from dashboard.traces.operators import side_by_side
from dashboard.traces.planned import context as plan_of
from dashboard.traces.spans import about, device_of, step_of
from dashboard.traces.whatif_pipeline import of_trace
from parallel_core import limits

PER_PAGE = 50
PARTS = {"planned": "Planned over measured", "whatif": "What if", "operators": "Rank against rank"}
"""Parts of the page of a trace that are fetched by themselves -> what the page of such a part is called."""
OPEN = (TraceState.QUEUED, TraceState.READING)


@require_safe
def traces(request: HttpRequest) -> HttpResponse:
    """All traces, newest first."""
    rows = Trace.objects.select_related("owner")
    shown = Paginator(rows, PER_PAGE).get_page(request.GET.get("page"))
    return render(request, "traces/list.html", {"page": shown, "may_submit": may_submit(request.user)})


@require_http_methods(["GET", "HEAD", "POST"])
@member_required
def new(request: HttpRequest) -> HttpResponse:
    """GET: the form. POST: store the files and queue them, or show what is wrong (422)."""
    values, errors = {"name": request.POST.get("name", "")}, dict[str, str]()
    if request.method == "POST":
        try:
            trace = services.upload(owner=request.user, name=values["name"], files=request.FILES.getlist("files"))
        except Invalid as error:
            errors = error.field_errors
        else:
            return redirect("traces:page", trace.pk)
    context: dict[str, Any] = {"values": values, "errors": errors, "max_size": services.MAX_SIZE}
    context |= {"max_name": limits.MAX_NAME, "max_files": services.MAX_FILES}
    return render(request, "traces/new.html", context, status=422 if errors else 200)


@require_safe
def one(request: HttpRequest, pk: int) -> HttpResponse:
    """The page of a trace. `?step=` is the step shown; with HX-Request only the part that waits for the analyst."""
    trace = get_object_or_404(Trace.objects.select_related("owner"), pk=pk)
    context: dict[str, Any] = {"trace": trace, "open": trace.state in OPEN}
    if request.headers.get("HX-Request") and trace.state in OPEN:
        return render(request, "traces/waiting.html", context)
    context["may_change"] = may_change(request.user, trace)
    context["notes"] = page.notes(trace)
    if trace.state == TraceState.READY:
        context |= _found(request, trace)
    response = render(request, "traces/page.html", context)
    if request.headers.get("HX-Request"):
        response.headers["HX-Refresh"] = "true"
    return response


@require_safe
def gantt(request: HttpRequest, pk: int) -> JsonResponse:
    """The timeline of `?step=`; with `from` and `to` (ms from its start) only of that window."""
    trace = get_object_or_404(Trace, pk=pk, state=TraceState.READY)
    return JsonResponse(
        page.timeline(trace, _step(request, trace), window_of(request.GET), lit_of(request.GET)).as_dict()
    )


@require_safe
@vary_on_headers("HX-Request")
def changed(request: HttpRequest, pk: int) -> HttpResponse:
    """The what-if part of the page; replaces the browser's URL with the page's own."""
    trace = get_object_or_404(Trace, pk=pk, state=TraceState.READY)
    step = _step(request, trace)
    made = of_trace(trace, step, request.GET)
    response = _part(request, "whatif", {"trace": trace, "step": step, "whatif": made})
    if made.sentence and any(request.GET.get(name) for name in (made.form.fields if made.form else ())):
        response.headers["HX-Replace-Url"] = f"{reverse('traces:page', args=[pk])}?{request.GET.urlencode()}"
    return response


@require_safe
@vary_on_headers("HX-Request")
def planned(request: HttpRequest, pk: int) -> HttpResponse:
    """The part of the page that lays the plan over the step."""
    trace = get_object_or_404(Trace, pk=pk, state=TraceState.READY)
    step = _step(request, trace)
    return _part(request, "planned", {"trace": trace, "step": step} | plan_of(trace, step))


@require_safe
@vary_on_headers("HX-Request")
def operators(request: HttpRequest, pk: int) -> HttpResponse:
    """The part of the page that compares two ranks."""
    trace = get_object_or_404(Trace, pk=pk, state=TraceState.READY)
    step = _step(request, trace)
    return _part(
        request, "operators", {"trace": trace, "step": step, "operators": side_by_side(trace, step, request.GET)}
    )


def _part(request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
    """A part of the page of a trace, as a page of its own where it is opened alone, as without JavaScript."""
    if request.headers.get("HX-Request"):
        return render(request, f"traces/{name}.html", context)
    legend = () if name == "operators" else LEGEND
    context |= {"part": f"traces/{name}.html", "title": PARTS[name], "legend": legend}
    return render(request, "traces/part_alone.html", context)


@token_may_read
@require_safe
def saved(request: HttpRequest, pk: int, step: int, form: str) -> StreamingHttpResponse:
    """The spans of a step as a file in one of FORMS."""
    trace = get_object_or_404(Trace, pk=pk, state=TraceState.READY)
    if step not in trace.steps or form not in FORMS:
        raise Http404(f"trace {pk} has no step {step} as '{form}'; it can be had as {' or '.join(FORMS)}")
    return as_file(step_of(trace, step), form, f"trace-{pk}-step-{step}", about(trace, step))


def _step(request: HttpRequest, trace: Trace) -> int:
    """The step of `?step=`, else the middle one."""
    steps, asked = trace.steps, number(request.GET.get("step"))
    return asked if asked is not None and asked in steps else steps[len(steps) // 2]


def _found(request: HttpRequest, trace: Trace) -> dict[str, Any]:
    step = _step(request, trace)
    found, largest = step_of(trace, step), page.largest(trace)
    return accounts.table(found.accounts) | {
        "steps": trace.steps,
        "choice": StepChoice.among(trace.steps, step),
        "step": step,
        "verdict": page.sentence(trace, step, found),
        "gantt": page.timeline(trace, step, lit=lit_of(request.GET)),
        "where": page.where(found, page.source_of(trace), recorded=trace.spec is not None),
        "findings": page.findings(trace, step),
        "missing": page.missing(trace, step),
        "largest": largest,
        "listed": sum(row["count"] for row in largest),
        "legend": LEGEND,
        "kernels": sum(rank["raw"] for rank in trace.ranks.values()),
        "device": _counted(trace),
        "address": _run_address(trace),
        "may_submit": may_submit(request.user),
    }


def _counted(trace: Trace) -> str:
    """What its spans were made from."""
    if trace.recorded:
        return "spans"
    return "GPU kernels" if device_of(trace) == "cuda" else "CPU operations"


def _run_address(trace: Trace) -> str:
    """The address of New run with the spec that was exported with the trace; '' without one."""
    if trace.spec is None:
        return ""
    asked = trace.spec.model_dump(mode="json", exclude_defaults=True)
    return f"{reverse('runs:new')}?{urlencode({'spec': json.dumps(asked)})}"


@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    """GET asks for confirmation (for browsers without JavaScript), POST deletes."""
    trace = get_object_or_404(Trace, pk=pk)
    if not may_change(request.user, trace):
        raise PermissionDenied("Only the trace's owner and admins may delete it.")
    if request.method == "POST":
        services.delete(trace=trace, user=request.user)
        return redirect("traces:list")
    space = sentence_of(blob_bytes(trace.spans.order_by(), "data"))
    return render(request, "traces/delete.html", {"trace": trace, "space": space})
