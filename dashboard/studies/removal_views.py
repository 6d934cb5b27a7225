"""The page that deletes a study."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods

from dashboard.accounts.roles import may_change
from dashboard.runs.removal import checkpoints_sentence
from dashboard.runs.services import Invalid
from dashboard.runs.stored import space_sentence
from dashboard.runs.tracing import thinning
from dashboard.studies import removal
from dashboard.studies.models import Study


@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    """GET asks for confirmation, or says which of its runs must end first; POST deletes."""
    study = get_object_or_404(Study.objects.select_related("owner"), pk=pk)
    if not may_change(request.user, study):
        raise PermissionDenied("Only the study's owner and admins may delete it.")
    if request.method == "POST":
        try:
            removal.delete(study=study, user=request.user)
        except Invalid:  # the page says the same of each run
            return redirect("studies:delete", pk)
        messages.success(request, f"“{study.name}” was deleted.")
        return redirect("studies:list")
    context = {"study": study, "staying": removal.staying(study, request.user), "count": study.runs.count()}
    context["checkpoints"] = checkpoints_sentence(study.runs.all())
    context["space"] = space_sentence(study.runs.all())
    context["thinning"] = thinning.look(study.runs.all(), request.user)
    return render(request, "studies/delete.html", context)
