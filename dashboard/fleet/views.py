"""The fleet: hosts as rows, devices as cells, the queue beside them, and who held which device when."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.fleet import refusals, selectors, services
from dashboard.fleet.models import Worker
from dashboard.fleet.timeline import HOURS, timeline
from dashboard.runs import link_views
from dashboard.runs.models import Run
from dashboard.runs.queue import PLANNED, Waiting, everyone_waiting, queue_order, queued_runs

QUEUE_SHOWN = 20
"""Lines of the queue; the heading says how many of the runs they hold."""


@require_safe
def fleet(request: HttpRequest) -> HttpResponse:
    """`?hours=` is how far the timeline reaches back."""
    return render(request, "fleet/list.html", {**_context(request), **link_views.context(request)})


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


@require_http_methods(["GET", "HEAD", "POST"])
def remove(request: HttpRequest, pk: int) -> HttpResponse:
    """GET asks once, or says why it has to stay for now; POST takes it off the fleet."""
    worker = get_object_or_404(Worker, pk=pk)
    if not request.user.is_staff:  # type: ignore[union-attr]
        raise PermissionDenied("Only admins may remove a worker.")
    why = selectors.stays(worker)
    if request.method == "POST" and not why:
        try:
            services.remove(worker=worker, user=request.user)
        except services.Stays as error:  # it came back, or was given a run, just now
            why = str(error)
        else:
            messages.success(request, f"{worker.name} is off the fleet. Its runs are kept, and keep its name.")
            return redirect("fleet:list")
    context = {"worker": worker, "why": why, "profiles": worker.profiles.count()}
    return render(request, "fleet/remove.html", context, status=409 if why and request.method == "POST" else 200)


def _change(request: HttpRequest, pk: int, change: Callable[..., Worker], said: str) -> HttpResponse:
    worker = change(worker=get_object_or_404(Worker, pk=pk), user=request.user)
    messages.success(request, f"{worker.name} {said}.")
    return redirect("fleet:list")


def _turn(run: Run) -> tuple[str, int | None]:
    """Runs of one study go one after another, so they take one line of the queue together."""
    return ("study", run.study_id) if run.study_id and run.exclusive else ("run", run.pk)


def _queue_line(group: list[Run], waits: dict[int, Waiting]) -> dict[str, Any]:
    """The first of the group, what it waits for, and how many of its study follow."""
    return {"run": group[0], "more": len(group) - 1, "waits": waits.get(group[0].pk, Waiting()).sentence}


def _context(request: HttpRequest) -> dict[str, Any]:
    asked = request.GET.get("hours", "")
    hours = int(asked) if asked in {str(h) for h in HOURS} else HOURS[0]
    order = queue_order()
    waits = everyone_waiting() if order else {}
    groups = [list(group) for _, group in groupby(queued_runs(order[:PLANNED]), key=_turn)]
    workers = selectors.workers()
    staff = request.user.is_staff  # type: ignore[union-attr]
    return {
        "workers": workers,
        "devices": sum(not worker.silent or device.run is not None for worker in workers for device in worker.devices),
        "busy": sum(device.run is not None for worker in workers for device in worker.devices),
        "queue": [_queue_line(group, waits) for group in groups[:QUEUE_SHOWN]],
        "queue_shown": sum(map(len, groups[:QUEUE_SHOWN])),
        "queued": len(order),
        "timeline": timeline(workers, hours),
        "hours": hours,
        "hours_choices": HOURS,
        "may_drain": staff,
        "refusals": refusals.lately() if staff else [],
    }
