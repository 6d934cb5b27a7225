"""The Fleet page: hosts as rows, devices as cells, the queue next to them, and which run held which device when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard.accounts.roles import may_change
from dashboard.fleet import dead_letters, listening, refusals, selectors, services, worker_views
from dashboard.fleet.models import Worker
from dashboard.fleet.timeline import HOURS, timeline
from dashboard.fleet.usable import Usable
from dashboard.live.changes import priced
from dashboard.one_look import one_look
from dashboard.runs import link_views
from dashboard.runs.models import Run, State
from dashboard.runs.waiting.asking import queued_runs
from dashboard.runs.waiting.queue import Waiting, everyone_waiting, told_closely
from dashboard.runs.waiting.queueing import may_put_first

QUEUE_SHOWN = 20
"""The most lines of the queue that are shown; the heading says how many runs they stand for."""


@require_safe
@one_look()
def fleet(request: HttpRequest) -> HttpResponse:
    """The page; `?hours=` says how far back the timeline goes."""
    return render(request, "fleet/list.html", {**_context(request), **link_views.context(request)})


@require_safe
@priced
@one_look()
def part(request: HttpRequest) -> HttpResponse:
    """Only the live part of the page."""
    return render(request, "fleet/part.html", _context(request))


@require_POST
def drain(request: HttpRequest, pk: int) -> HttpResponse:
    return _change(request, pk, services.drain, "takes no new run; what runs on it finishes")


@require_POST
def enable(request: HttpRequest, pk: int) -> HttpResponse:
    there = selectors.reporting().filter(pk=pk).exists()
    return _change(request, pk, services.enable, f"takes runs again{'' if there else ' as soon as it reports'}")


@require_http_methods(["GET", "HEAD", "POST"])
def remove(request: HttpRequest, pk: int) -> HttpResponse:
    """GET asks for confirmation, or says why the worker cannot be removed now; POST removes it."""
    worker = get_object_or_404(Worker, pk=pk)
    if not request.user.is_staff:
        raise PermissionDenied("Only admins may remove a worker.")
    why = selectors.stays(worker)
    if request.method == "POST" and not why:
        try:
            services.remove(worker=worker, user=request.user)
        except services.CannotRemoveWorker as error:  # it has just come back, or was given a run
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


def _queue(user: Any) -> dict[str, Any]:
    """The queue: its first lines, how many runs they stand for, and how many there are; whether they differ in priority
    and in owner. The runs of a study, one after another or side by side, share a line at the place of the first."""
    waits = everyone_waiting()
    rows = Run.objects.order_by().filter(state=State.QUEUED)
    of = {pk: row for pk, *row in rows.values_list("pk", "study", "priority", "owner") if pk in waits}
    lines: dict[int, list[int]] = {}
    for pk in filter(of.__contains__, waits):
        lines.setdefault(of[pk][0] or -pk, []).append(pk)
    shown = {runs[0]: len(runs) for runs in list(lines.values())[:QUEUE_SHOWN]}
    waits = told_closely(waits, shown)
    return {
        "queue": [_queue_line(run, shown[run.pk], waits, user) for run in queued_runs(list(shown))],
        "queue_shown": sum(shown.values()),
        "queued": len(waits),
        "several_levels": len({priority for _, priority, _ in of.values()}) > 1,
        "taking_turns": len({owner for *_, owner in of.values()}) > 1,
    }


def _queue_line(run: Run, count: int, waits: dict[int, Waiting], user: Any) -> dict[str, Any]:
    """A line of the queue: the first of its `count` runs, what it waits for, how many of its study follow, and whether
    the user may put it first."""
    said = {"more": count - 1, "waits": waits.get(run.pk, Waiting()).sentence}
    return {"run": run, "first": may_put_first(user, run), **said}


def _context(request: HttpRequest) -> dict[str, Any]:
    asked = request.GET.get("hours", "")
    hours = int(asked) if asked in {str(h) for h in HOURS} else HOURS[0]
    workers = worker_views.workers()
    staff = request.user.is_staff
    profiles = [view.profiles for view in workers if view.profiles is not None]
    return {
        "workers": workers,
        "usable": Usable.of(workers),
        **_queue(request.user),
        "timeline": timeline(workers, hours),
        "hours": hours,
        "hours_choices": HOURS,
        "may_drain": staff,
        "may_withdraw": {profile.pk for profile in profiles if may_change(request.user, profile)},
        "refusals": refusals.lately() if staff else [],
        "away": listening.away_sentence(),
        "refused": listening.refused_sentence(staff),
        "failing": listening.failing_sentences() if staff else [],
        "set_aside": dead_letters.set_aside() if staff else ([], 0),
    }
