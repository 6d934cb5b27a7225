"""Add run: adds a run to a study, from the form of single runs filled with the baseline's spec."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods

from dashboard.accounts.guards import member_required
from dashboard.runs import services, submission
from dashboard.runs.form import spec_fields
from dashboard.runs.form.forms import RunForm
from dashboard.runs.form.panel import Panel
from dashboard.runs.waiting.priority import Priority
from dashboard.studies import joining
from dashboard.studies.models import Study
from dashboard.studies.own_pages import OWN_PAGES


@require_http_methods(["GET", "HEAD", "POST"])
@member_required
def add_run(request: HttpRequest, pk: int) -> HttpResponse:
    """GET: the form. POST: queue the run after the study's others, or show what is wrong (422).

    404 for a study that compares something else than runs that train.
    """
    study = get_object_or_404(Study.objects.exclude(kind__in=tuple(OWN_PAGES)).select_related("baseline"), pk=pk)
    joining.check(study, request.user)
    if request.method != "POST":
        spec = study.baseline.spec if study.baseline else study.base
        queued = {
            "run_on": study.run_on,
            "priority": Priority(study.priority).word,
            "based_on": study.baseline_id or "",
        }
        form = RunForm(initial={**spec_fields.from_spec(spec), **queued})
        form.assessment = submission.assess(spec, where=study.run_on)
        return _page(request, study, form)
    form = RunForm.sent(request)
    if form.is_valid():
        try:
            run = joining.submit(owner=request.user, study=study, request=form.submission())
        except services.Invalid as error:
            form.show(error.field_errors)
        else:
            messages.success(request, f"“{run.name}” joined the runs of this study.")
            return redirect("studies:page", pk)
    return _page(request, study, form, status=422)


def _page(request: HttpRequest, study: Study, form: RunForm, status: int = 200) -> HttpResponse:
    context = {"form": form, "study": study, "panel": Panel.of(form.assessment)}
    return render(request, "runs/form.html", context, status=status)
