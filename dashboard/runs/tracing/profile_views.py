"""Downloads of torch.profiler traces and memory snapshots of a run's steps, and opening such traces under Traces."""

from __future__ import annotations

from django.contrib import messages
from django.core.files.base import ContentFile
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from dashboard.accounts.guards import member_required, token_may_read
from dashboard.runs.models import Run
from dashboard.runs.services import Invalid
from dashboard.runs.tracing import profiles
from dashboard.traces import services
from parallel_core import limits
from parallel_core.observe.snapshot import for_viewer, unpacked


@token_may_read
@require_safe
def download(request: HttpRequest, pk: int, step: int, rank: int) -> HttpResponse:
    """The gzipped Chrome trace of one rank's step, which Perfetto opens. 404 if there is none."""
    found = profiles.data(get_object_or_404(Run, pk=pk), step, rank)
    if found is None:
        raise Http404(f"run {pk} has no trace of step {step} of rank {rank}")
    headers = {"Content-Disposition": f'attachment; filename="run-{pk}-step-{step}-rank{rank}.json.gz"'}
    return HttpResponse(found, content_type="application/gzip", headers=headers)


@token_may_read
@require_safe
def snapshot(request: HttpRequest, pk: int, step: int, rank: int, form: str) -> HttpResponse:
    """The CUDA allocator's history over one rank's step, as `json.gz` (as recorded) or as the `pickle` that PyTorch's
    viewer of memory snapshots reads. 404 if there is none or it cannot be converted."""
    found = profiles.data(get_object_or_404(Run, pk=pk), step, rank, profiles.Kind.SNAPSHOT)
    if found is None or form not in ("json.gz", "pickle"):
        raise Http404(f"run {pk} has no snapshot of step {step} of rank {rank} as '{form}'")
    if form == "pickle":
        try:
            found = for_viewer(unpacked(found))
        except ValueError as error:
            raise Http404(str(error)) from error
    kind = "application/gzip" if form == "json.gz" else "application/octet-stream"
    name = f"run-{pk}-step-{step}-rank{rank}-memory.{form}"
    return HttpResponse(found, content_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


@require_POST
@member_required
def open_in_traces(request: HttpRequest, pk: int, step: int) -> HttpResponse:
    """Queues the complete traces of a step's ranks as one uploaded trace, and redirects to its page."""
    run = get_object_or_404(Run, pk=pk)
    found = {
        profile.rank: data
        for row in profiles.listed(run)
        if row.number == step
        for profile in row.ranks
        if profile.whole and (data := profiles.data(run, step, profile.rank)) is not None
    }
    if not found:
        raise Http404(f"run {pk} has no trace of step {step}")
    files = [ContentFile(data, name=f"rank{rank}.json.gz") for rank, data in list(found.items())[: services.MAX_FILES]]
    name = f"{run.name}, step {step}"[: limits.MAX_NAME]
    try:
        return redirect("traces:page", services.upload(owner=request.user, name=name, files=files).pk)
    except Invalid as refused:
        messages.error(request, " ".join(refused.field_errors.values()))
        return redirect(f"{reverse('runs:page', args=(pk,))}?tab=ranks")
