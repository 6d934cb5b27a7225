"""New run, its live check, and forms and actions for one run: clone, resume, cancel, trace the next step, edit.

The list is in `browse.list_views`, the run's page in `page.views`.
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.accounts.guards import member_required
from dashboard.accounts.roles import may_change
from dashboard.begun import began, typed
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.numbers import number
from dashboard.one_look import one_look
from dashboard.runs import cancelling, resuming, services, submission, weights
from dashboard.runs.damaged import damaged
from dashboard.runs.form import spec_loading
from dashboard.runs.form.forms import RunForm
from dashboard.runs.form.panel import Panel
from dashboard.runs.form.presets import BY_KEY, PRESETS
from dashboard.runs.form.spec_loading import SpecForm
from dashboard.runs.generation import generating
from dashboard.runs.models import ENDED, Run
from dashboard.runs.name_tags_notes import MAX_NOTES
from dashboard.runs.states import retries_at_first
from dashboard.runs.tracing import next_trace
from parallel_core import limits
from parallel_core.analysis.quantities import count_text, sentence_text
from parallel_core.observe.trace_request import read_how
from workers.contract import ResumeFrom


def _form_page(request: HttpRequest, form: RunForm, status: int = 200, **more: Any) -> HttpResponse:
    unusable = weights.unusable(FleetSnapshot.now())
    shown = {"form": form, "presets": PRESETS, "panel": Panel.of(form.assessment), "unusable_weights": unusable}
    context = {**shown, **more}
    return render(request, "runs/form.html", context, status=status)


def _initial(
    spec: dict[str, Any], resume_from: ResumeFrom | None = None, like: Run | None = None, **words: Any
) -> RunForm:
    """The form filled with a spec; `like`: the run on which it is based, for over how many hosts and on which
    devices."""
    hosts, run_on = (like.host_count, like.run_on) if like else (0, "")
    spelt = f"{resume_from['run']}:{resume_from['step']}" if resume_from else ""
    words |= {"resume_from": spelt, "hosts": str(hosts), "run_on": run_on, "based_on": like.pk if like else ""}
    form = RunForm(initial={**spec_loading.form_values(spec), **words})
    form.assessment = submission.assess(spec, resume_from, hosts, run_on)
    form.show(form.assessment.errors)
    return form


@require_http_methods(["GET", "HEAD", "POST"])
@member_required
def new(request: HttpRequest) -> HttpResponse:
    """GET: the form, from `?preset=`, `?weights=` (of a worker), or `?spec=` (JSON), the last with `?whatif=`: the run
    of which that is a changed spec; it has its name, hosts and devices, too.

    POST: queue the run, or show what is wrong (422) with everything kept.
    """
    return _create(request) if request.method == "POST" else _begun(request)


@one_look()
def _begun(request: HttpRequest) -> HttpResponse:
    """The form that `new` answers a GET with."""
    if text := request.GET.get("spec", ""):
        whatif = number(request.GET.get("whatif"))
        changed = Run.objects.filter(pk=whatif).first() if whatif else None
        return _loaded(request, SpecForm({"spec": text}), changed)
    if (spec := weights.spec_of(request.GET.get("weights", ""), FleetSnapshot.now())) is not None:
        return _form_page(request, _initial(spec), given=SpecForm(), begun=spec["train"]["weights"])
    preset = BY_KEY.get(request.GET.get("preset", ""), PRESETS[0])
    return _form_page(request, _initial(preset.spec), preset=preset, given=SpecForm())


@require_POST
@member_required
@one_look()
def load(request: HttpRequest) -> HttpResponse:
    """The form, filled with the spec of a file or of a text; 422 if there is none in it. Queues nothing."""
    return _loaded(request, SpecForm(request.POST, request.FILES))


def _loaded(request: HttpRequest, given: SpecForm, changed: Run | None = None) -> HttpResponse:
    """The form with the spec that was given, its errors at their fields; with the first preset if it is none.
    `changed`: the run that it differs from by what was asked in its What if."""
    if not given.is_valid():
        return _form_page(request, _initial(PRESETS[0].spec), 422, preset=PRESETS[0], given=given)
    name = _name_of_next(changed, "what if") if changed else ""
    form = _initial(given.cleaned_data["spec"], like=changed, name=name)
    return _form_page(request, form, given=SpecForm(), loaded=True, changed=changed)


def _create(request: HttpRequest) -> HttpResponse:
    form = RunForm.sent(request)
    if form.is_valid():
        try:
            run = submission.submit(owner=request.user, **form.submission())
        except services.Invalid as error:
            form.show(error.field_errors)
        else:
            messages.success(request, f"“{run.name}” was submitted.")
            return redirect(reverse("runs:page", args=(run.pk,)))
    named = form.cleaned_data.get("resume_from") if request.POST.get("resumes") else None
    return _form_page(request, form, status=422, **_resumed(named))


def _resumed(named: ResumeFrom | None) -> dict[str, Any]:
    """What the page shows of the checkpoint from which a run is to begin; {} if its run has none."""
    run = Run.objects.filter(pk=named["run"]).first() if named else None
    steps = resuming.steps(run) if run else []
    if not (named and run and steps):
        return {}
    bad, best = damaged(run), resuming.best(run)
    choices = [(step, bad.get(step), resuming.remark(best, step)) for step in steps]
    return {"source": run, "steps": choices, "step": named["step"]}


@require_POST
@member_required
@one_look()
def check(request: HttpRequest) -> HttpResponse:
    """The messages of all fields and the feasibility panel for what has been typed so far. Queues nothing."""
    form = RunForm(request.POST)
    form.is_valid()
    return render(request, "runs/form_check.html", {"form": form, "panel": Panel.of(form.assessment), "live": True})


@require_safe
@member_required
@one_look()
def clone(request: HttpRequest, pk: int) -> HttpResponse:
    """The form filled with a run's spec and the checkpoint that it began from; posting it makes a new run."""
    run = get_object_or_404(Run, pk=pk)
    if run.task and run.resume_run_id:
        return redirect(f"{reverse('runs:generate', args=[run.resume_run_id])}?like={run.pk}")
    if run.generates and generating.weights_of(run):
        return redirect(f"{reverse('runs:generate', args=[run.pk])}?like={run.pk}")
    if run.between:
        return redirect(f"{reverse('fleet:list')}#links")
    name, lost = _name_of_next(run, "copy"), resuming.lost_beginning(run)
    begins, retries = None if lost else run.resumes_from, retries_at_first(run)
    form = _initial(run.spec, begins, run, name=name, tags=", ".join(run.tags), retries=retries)
    return _form_page(request, form, source=run, begins=begins, lost=lost)


@require_safe
@member_required
@one_look()
def resume(request: HttpRequest, pk: int) -> HttpResponse:
    """The form filled with a run's spec, to resume from its newest checkpoint (or that of `?step=`) in any layout."""
    run = get_object_or_404(Run, pk=pk)
    steps, first = resuming.steps(run), resuming.first_choice(run)
    if first is None:
        raise Http404("no worker has a checkpoint of this run")
    asked = number(request.GET.get("step"))
    step = asked if asked is not None and asked in steps else first
    name = _name_of_next(run, f"from step {step}")
    spec = resuming.with_steps_left(run.spec, step)
    words = {"name": name, "tags": ", ".join(run.tags), "retries": retries_at_first(run)}
    form = _initial(spec, {"run": pk, "step": step}, run, **words)
    return _form_page(request, form, **_resumed({"run": pk, "step": step}), longer=spec != run.spec)


def _name_of_next(run: Run, how: str) -> str:
    """The name of a run made from this one; '' if this one has its strategy's name, as the next may have another."""
    return "" if run.name == run.label else f"{run.name} ({how})"[: limits.MAX_NAME]


@require_http_methods(["GET", "HEAD", "POST"])
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    """GET asks for confirmation (for browsers without JavaScript), POST asks the controller to stop the run."""
    run = get_object_or_404(Run, pk=pk)
    if not may_change(request.user, run):
        raise PermissionDenied("Only the run's owner and admins may cancel it.")
    if request.method == "POST":
        cancelling.request_cancel(run=run, user=request.user)
        return redirect("runs:page", pk)
    return render(request, "runs/cancel.html", {"run": run, "ended": run.state in ENDED})


@require_POST
def trace_next(request: HttpRequest, pk: int) -> HttpResponse:
    """Requests a trace of the next step of a running run: its spans, or what `how` says."""
    run = get_object_or_404(Run, pk=pk)
    try:
        next_trace.request(run=run, user=request.user, how=read_how(request.POST.get("how", "spans")))
    except ValueError as refused:
        messages.info(request, sentence_text(str(refused)))
    return redirect("runs:page", pk)


@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest, pk: int) -> HttpResponse:
    """Changes name, tags and notes of a run."""
    run = get_object_or_404(Run, pk=pk)
    if not may_change(request.user, run):
        raise PermissionDenied("Only the run's owner and admins may change it.")
    now, errors = {"name": run.name, "tags": ", ".join(run.tags), "notes": run.notes}, {}
    if request.method == "POST":
        name, tags, notes = (typed(request.POST, key) for key in now)
        try:
            split = None if tags is None else [tags]
            services.edit(run=run, user=request.user, name=name, tags=split, notes=notes)
        except services.Invalid as error:
            errors = error.field_errors
        else:
            return redirect("runs:page", pk)
    values, was = {key: request.POST.get(key, value) for key, value in now.items()}, began(request.POST, now)
    hints = {
        "name": f"at most {limits.MAX_NAME} characters",
        "tags": "separated by commas",
        "notes": f"what it is to show, or what it showed; at most {count_text(MAX_NOTES)} characters",
    }
    context = {"run": run, "values": values, "was": was, "errors": errors, "hints": hints}
    return render(request, "runs/edit.html", context, status=422 if errors else 200)
