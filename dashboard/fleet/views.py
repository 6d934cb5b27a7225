"""The fleet: hosts as rows, devices as cells, the queue beside them, and who held which device when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from dashboard.fleet import selectors, services
from dashboard.fleet.models import Worker
from dashboard.fleet.timeline import HOURS, timeline
from dashboard.runs.queue import queued_runs, waiting

QUEUE_SHOWN = 20
"""Queued runs listed; the heading says how many there are."""


@require_safe
def fleet(request: HttpRequest) -> HttpResponse:
    """`?hours=` is how far the timeline reaches back."""
    return render(request, "fleet/list.html", _context(request))


@require_safe
def part(request: HttpRequest) -> HttpResponse:
    """The live part of the page alone."""
    return render(request, "fleet/part.html", _context(request))


@require_POST
def drain(request: HttpRequest, pk: int) -> HttpResponse:
    return _change(request, pk, services.drain, "takes no new run; what runs on it finishes")


@require_POST
def enable(request: HttpRequest, pk: int) -> HttpResponse:
    return _change(request, pk, services.enable, "takes runs again")


def _change(request: HttpRequest, pk: int, change: Callable[..., Worker], said: str) -> HttpResponse:
    worker = change(worker=get_object_or_404(Worker, pk=pk), user=request.user)
    messages.success(request, f"{worker.name} {said}.")
    return redirect("fleet:list")


def _context(request: HttpRequest) -> dict[str, Any]:
    asked = request.GET.get("hours", "")
    hours = int(asked) if asked in {str(h) for h in HOURS} else HOURS[0]
    queue = queued_runs()
    workers = selectors.workers()
    return {
        "workers": workers,
        "devices": sum(len(worker.devices) for worker in workers),
        "busy": sum(device.run is not None for worker in workers for device in worker.devices),
        "queue": [{"run": run, "waits": waiting(run).sentence} for run in queue[:QUEUE_SHOWN]],
        "queued": len(queue),
        "timeline": timeline(workers, hours),
        "hours": hours,
        "hours_choices": HOURS,
        "may_drain": request.user.is_staff,  # type: ignore[union-attr]
    }
