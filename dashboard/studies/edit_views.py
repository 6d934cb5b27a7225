"""The page that changes name, notes and place in the queue of a study."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods

from dashboard.accounts.roles import may_change
from dashboard.begun import began, typed
from dashboard.runs.models import State
from dashboard.runs.name_tags_notes import MAX_NOTES
from dashboard.runs.services import Invalid
from dashboard.runs.waiting.queue_fields import QueueForm
from dashboard.studies import editing
from dashboard.studies.models import Study
from parallel_core import limits
from parallel_core.analysis.quantities import count_text

HINTS = {
    "name": f"at most {limits.MAX_NAME} characters",
    "notes": "what it is to find out, or what it found; on its page and in its report; "
    f"at most {count_text(MAX_NOTES)} characters",
}


@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest, pk: int) -> HttpResponse:
    """GET: the form. POST: saves, or shows what is wrong (422) with everything kept."""
    study = get_object_or_404(Study, pk=pk)
    if not may_change(request.user, study):
        raise PermissionDenied("Only the study's owner and admins may change it.")
    now = {"name": study.name, "notes": study.notes}
    values, errors, form = now, {}, QueueForm(study)
    if request.method == "POST":
        form, values = QueueForm(study, request.POST), {key: request.POST.get(key, "") for key in values}
        if form.is_valid():
            name, notes = (typed(request.POST, key) for key in now)
            try:
                editing.edit(study=study, user=request.user, name=name, notes=notes, **form.asked())
            except Invalid as error:
                errors = error.field_errors
                for name in form.fields.keys() & errors.keys():
                    form.add_error(name, errors[name])
            else:
                return redirect("studies:page", pk)
    was = {**began(request.POST, now), **form.began()}
    context: dict[str, Any] = {"study": study, "form": form, "values": values, "was": was, "errors": errors}
    queued = study.runs.filter(state=State.QUEUED, cancel_requested_at=None).count()
    context |= {"hints": HINTS, "queued": queued}
    return render(request, "studies/edit.html", context, status=422 if errors or form.errors else 200)
