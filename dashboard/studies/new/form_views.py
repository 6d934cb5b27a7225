"""New study: choose a kind, see what would run and how long, queue it."""

from __future__ import annotations

from typing import Any, TypeVar

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.accounts.roles import may_submit
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.ledger import records
from dashboard.ledger import selectors as ledger
from dashboard.numbers import number
from dashboard.runs.form.form_words import in_form_words
from dashboard.runs.models import Run
from dashboard.runs.services import Invalid
from dashboard.runs.waiting.spreading import chosen, several
from dashboard.studies import breakages, reruns, services
from dashboard.studies.models import Study
from dashboard.studies.new.feasible import Allowance
from dashboard.studies.new.forms import initial_of
from dashboard.studies.new.kinds import KINDS, MATRIX, StudyKind
from dashboard.studies.new.study_form import StudyForm
from dashboard.studies.new.variants import Plan
from parallel_core.analysis.quantities import listed_text
from parallel_core.plan.generation import worst_place

Source = TypeVar("Source", Study, Run)

SHOWN_ROWS = 60
"""The most variants that the preview lists; the sentence above has their number."""
PREDICTED_ROWS = 16
"""The most variants whose step is predicted: each takes about 20 ms to simulate."""


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """GET: the form, empty or from `?clone=<study>` or `?run=<run>`.

    POST: queue, or with `preview` only show what would be queued (HTMX requests that while the user types; without
    JavaScript a button does).
    """
    if not may_submit(request.user):
        raise PermissionDenied("Your account may look at studies but not create them.")
    source, run = _asked_for(request, "clone", Study), _asked_for(request, "run", Run)
    kind = _kind(request, source)
    context = {"kinds": KINDS.values(), "kind": kind, "source": source or run}
    context["origin"] = {"clone": source.pk} if source else {"run": run.pk} if run else {}
    if request.method != "POST":
        fleet = FleetSnapshot.now()
        form = kind.form(initial=_initial(kind, source, run, fleet), fleet=fleet)
        return render(request, "studies/new.html", {**context, **_opened(form)})
    form = kind.form.sent(request)
    context["form"] = form
    if "preview" in request.POST:
        template = "studies/new_preview.html" if request.headers.get("HX-Request") else "studies/new.html"
        return render(request, template, {**context, "preview": _preview(form), "live": True})
    if form.is_valid():
        try:
            return redirect("studies:page", form.create(request.user).pk)
        except Invalid as error:
            form.show(error.field_errors)
    return render(request, "studies/new.html", {**context, "preview": _preview(form)}, status=422)


@require_POST
def reproduce(request: HttpRequest, key: str) -> HttpResponse:
    """Queues the study of a scenario that breaks; 404 if there is none of that name."""
    breakage = breakages.BY_KEY.get(key)
    if breakage is None:
        raise Http404(f"there is no scenario '{key}'; there are {', '.join(breakages.BY_KEY)}")
    try:
        return redirect("studies:page", breakages.create(owner=request.user, breakage=breakage).pk)
    except Invalid as error:
        messages.error(request, " ".join(error.field_errors.values()))
        return redirect("plans:scenarios")


def _kind(request: HttpRequest, source: Study | None) -> StudyKind:
    asked = request.POST.get("kind") or request.GET.get("kind") or (source.kind if source else "")
    return KINDS.get(asked, MATRIX)


def _asked_for(request: HttpRequest, name: str, model: type[Source]) -> Source | None:
    """The row whose number the query has as `name`; None without it, and 404 where there is no such row."""
    pk = number(request.GET.get(name))
    return None if pk is None else get_object_or_404(model, pk=pk)


def _initial(kind: StudyKind, source: Study | None, run: Run | None, fleet: FleetSnapshot) -> dict[str, Any]:
    if source:
        return initial_of(source)
    return {**kind.form.initial_of_run(run), "run_on": run.run_on} if run else kind.form.initial_of_fleet(fleet)


def _opened(form: StudyForm) -> dict[str, Any]:
    """The form nobody has typed into, and what would run; where that cannot be, with marks at its fields, such as of
    more devices than there are, but not as one that was refused (`live`)."""
    bound = _bound(form)
    preview = _preview(bound)
    return {"form": form if preview else bound, "preview": preview, "live": preview is None}


def _bound(form: StudyForm) -> StudyForm:
    """The form as if its initial values had been posted, so that the first page already shows what would run."""
    data = {name: form[name].value() for name in form.fields}
    sent = {name: value for name, value in data.items() if value not in (None, False)}
    return type(form)(sent, fleet=form.fleet)


def _preview(form: StudyForm) -> dict[str, Any] | None:
    """What would run; None while the fields have errors. A missing name does not matter."""
    if set(form.errors) - {"name"}:
        return None
    plan = form.planned
    rows = _rows(plan, form.fleet)
    for row in rows:
        row["seconds"], row["times"] = form.seconds_of(row["variant"]), form.times_of(row["variant"])
    steps = [row["step"] for row in rows if row["step"]]
    skipped = [(gone.name, gone.reason) for gone in plan.skipped]
    found = {"estimate": form.estimate(), "rows": rows, "total": len(plan.variants), "skipped": skipped}
    found |= {"unchecked": plan.unchecked, "uncounted": plan.uncounted, "note": form.runs_note}
    found["waits"] = reruns.waiting_text(plan.waits)
    found["warnings"] = {kind: in_form_words(reruns.by_reason(said)) for kind, said in plan.warnings.items()}
    found["too_many"] = services.too_many(plan, form.cleaned_data.get("repeats") or 1)
    found["untimed"] = next((step.untimed for step in steps if step.untimed), None)
    return {**found, "record": records.time_record().sentence() if any(step.seconds for step in steps) else ""}


def _rows(plan: Plan, fleet: FleetSnapshot) -> list[dict[str, Any]]:
    """Each variant of a plan made by `feasible` with the hosts on which its ranks would be, if they are several; the
    first ones with their predicted step, or the memory of a rank if they generate text."""
    shown = plan.variants[:SHOWN_ROWS]
    trained = [variant.spec for variant in shown[:PREDICTED_ROWS] if not variant.task]
    sources = ledger.Sources(trained)
    allowance = Allowance()
    out = []
    for i, variant in enumerate(shown):
        workers = chosen(plan.asks[variant.name], fleet)
        quick = i < PREDICTED_ROWS and allowance.takes(variant.spec) and not variant.task
        step = sources.predicted(variant.spec, workers) if quick else None
        memory = worst_place(variant.spec, variant.task).total if variant.task else None
        over = listed_text(list(dict.fromkeys(several(workers))))
        out.append({"variant": variant, "over": over, "step": step, "memory": memory})
    return out
