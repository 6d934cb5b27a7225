"""The page that changes a run's place in the queue, and the button that puts it first."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.runs.models import Run
from dashboard.runs.services import Invalid
from dashboard.runs.waiting import priority as levels
from dashboard.runs.waiting import queueing
from dashboard.runs.waiting.priority import Priority
from dashboard.runs.waiting.queue_fields import QueueForm


@require_http_methods(["GET", "HEAD", "POST"])
def change(request: HttpRequest, pk: int) -> HttpResponse:
    """Changes where a queued run is placed and its priority; back to the run's page once it is not queued any more."""
    run = get_object_or_404(Run.objects.select_related("study"), pk=pk)
    if refused := queueing.refusal(request.user, run):
        raise PermissionDenied(refused)
    if not queueing.changeable(run):
        messages.info(request, queueing.NOT_QUEUED)
        return redirect("runs:page", pk)
    form = QueueForm(run, request.POST) if request.method == "POST" else QueueForm(run)
    if form.is_bound and form.is_valid():
        try:
            queueing.change(run=run, user=request.user, **form.asked())
        except Invalid as error:
            for name, said in error.field_errors.items():
                form.add_error(name, said)
        else:
            return redirect("runs:page", pk)
    status = 422 if form.errors else 200
    return render(request, "runs/queue.html", {"run": run, "form": form}, status=status)


@require_POST
def first(request: HttpRequest, pk: int) -> HttpResponse:
    """Gives a queued run high priority; back to Fleet if it was asked for there (`page=fleet`)."""
    run = get_object_or_404(Run.objects.select_related("study"), pk=pk)
    try:
        queueing.change(run=run, user=request.user, priority=Priority.HIGH)
    except Invalid as error:
        if refused := error.field_errors.get(levels.FIELD):
            raise PermissionDenied(refused) from error
        messages.info(request, " ".join(error.field_errors.values()))
    return redirect("fleet:list") if request.POST.get("page") == "fleet" else redirect("runs:page", pk)
