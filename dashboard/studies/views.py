"""Pages of studies. The state of a page is in its query; changes are made by services."""

from __future__ import annotations

import csv
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from dashboard.accounts.guards import token_may_read
from dashboard.accounts.roles import may_change
from dashboard.charts.theme import LEGEND
from dashboard.deadlocks import again_after_deadlock
from dashboard.fields import Number
from dashboard.live.changes import answer, priced
from dashboard.numbers import number, numbers
from dashboard.runs.cancelling import any_left
from dashboard.runs.models import ENDED, State
from dashboard.runs.standing import root_of, standing, stands_for
from dashboard.schedules.glossary import words_of
from dashboard.studies import postmortem, reruns, scaling, table
from dashboard.studies.models import Study
from dashboard.studies.new.kinds import clone_address
from dashboard.studies.overview import (
    answer_cache,
    answers,
    by_loss,
    columns,
    few_rows,
    figures,
    findings,
    gantts,
    held_out,
    streams,
    swept,
)
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.own_pages import OWN_PAGES
from dashboard.studies.report import report_answers
from dashboard.studies.selectors import held_equal, overview

QUEUED_SHOWN = 3
"""A queued run is shown in the progress card if it is among so many first unfinished ones; running ones always are."""


def index(request: HttpRequest) -> HttpResponse:
    return redirect("studies:list")


def _with_runs(pk: int) -> Study:
    """The study with its runs, of which there may be thousands, read once for all that is said of them."""
    return get_object_or_404(Study.objects.select_related("owner", "baseline").prefetch_related("runs"), pk=pk)


def view_of(request: HttpRequest, study: Study) -> Overview:
    """The study against the baseline in the query, else against its own."""
    every = list(study.runs.all())
    runs = standing(every)
    wanted = number(request.GET.get("baseline"))
    chosen = next((run for run in every if run.pk == wanted), None)
    return overview(runs, stands_for(chosen or study.baseline, runs), ranked=by_loss.ranks(study.kind))


def target(request: HttpRequest) -> float | None:
    """?target=: the loss that counts as reached; None if it is absent or not a finite number."""
    return _asked_target(request)[0]


def _asked_target(request: HttpRequest) -> tuple[float | None, str]:
    """?target=, and what is wrong with it; '' if nothing."""
    try:
        return Number(label="Loss to reach", required=False).clean(request.GET.get("target", "")), ""
    except ValidationError as error:
        return None, " ".join(error.messages)


@require_GET
def page(request: HttpRequest, pk: int) -> HttpResponse:
    study = _with_runs(pk)
    if own := OWN_PAGES.get(study.kind):
        return own.page(request, study)
    live = live_context(request, study)
    view: Overview = live["view"]
    specs = [row.spec for row in view.rows]
    gantt_rows = gantts.default_rows(view, numbers(request.GET.get("show", "")))
    context = {
        "equal": held_equal(specs, max((row.run.devices for row in view.rows), default=0)),
        "gantt_src": _gantt_src(request, study),
        "gantt_most": gantts.MOST,
        "gantt_shown": [row.run.pk for row in gantt_rows],
        "gantt_height": 56 * sum(row.run.devices for row in gantt_rows) + 80,
        "legend": LEGEND,
        "words": words_of(specs),
        "clone": clone_address(study),
        "losses_first": study.side_by_side or bool(view.lead),
        "target_error": _asked_target(request)[1],
        "race_first": study.kind == streams.KIND and "target" in live["charts"],
    }
    return render(request, "studies/page.html", live | context)


LIVE_PARTS = {
    "verdict": "verdict_words",
    "again": "again",
    "progress": "progress",
    "answers": "answers",
    "parity": "parity",
    "table": "table",
}
"""Id of an element that changes while runs go on -> its template."""


def live_context(request: HttpRequest, study: Study) -> dict[str, Any]:
    """The context of LIVE_PARTS, and the charts."""
    view = view_of(request, study)
    stream_charts, stream_answers = streams.of_overview(view, target(request))
    alike = scaling.like_for_like(study.kind, view)
    said = streams.verdict(study.kind, scaling.verdict(study, view), view, stream_charts)
    made = figures.of_overview(alike)
    titles = [*said, *(chart.title for chart in made.values())]
    few = few_rows.few_of(request, view, titles)
    shown = [row for i, row in enumerate(view.open) if row.run.state != State.QUEUED or i < QUEUED_SHOWN]
    return {
        "study": study,
        "view": view,
        "few": few,
        "numbers": columns.table_of(request, few, titles),
        "open_shown": shown,
        "open_hidden": len(view.open) - len(shown),
        "answers": [*answers.of_overview(alike), *stream_answers],
        "charts": {**few_rows.cut(made, alike, few), "loss": figures.losses(view), **held_out.chart(view)}
        | swept.of_overview(study.kind, view)
        | streams.below(said, stream_charts)
        | scaling.of_overview(study, view),
        "verdict": said,
        "may_change": may_change(request.user, study),
        "other_baseline": view.baseline is not None
        and (study.baseline is None or root_of(view.baseline.run) != root_of(study.baseline)),
        "again": reruns.offer(study.runs.all()) if may_change(request.user, study) else "",
        "unfinished": reruns.unfinished(study.runs.all()) if may_change(request.user, study) else "",
        "cancellable": any_left((row.run for row in view.open), request.user),
        "done": len([row for row in view.rows if row.run.state in ENDED]),
    }


@require_GET
@priced
def changes(request: HttpRequest, pk: int) -> JsonResponse:
    """The parts of the page that differ from what the browser has: see `live.changes`."""
    study = _with_runs(pk)
    if own := OWN_PAGES.get(study.kind):
        listed, context = own.LIVE_PARTS, own.live_context(request, study, list(study.runs.all()))
    else:
        listed, context = LIVE_PARTS, live_context(request, study)
    return answer(request, "studies/parts", listed, context, context["charts"])


@require_GET
@priced
def of_rules(request: HttpRequest, pk: int) -> HttpResponse:
    """The part of the page with findings; loaded after the page, because judging takes time."""
    study = get_object_or_404(Study.objects.select_related("baseline"), pk=pk)
    view = view_of(request, study)
    context = {"study": study, "judgement": findings.of_overview(view), "postmortem": postmortem.of_study(study, view)}
    return render(request, "studies/parts/findings.html", context)


@require_GET
@priced
def questions(request: HttpRequest, pk: int) -> HttpResponse:
    """The part of the page with the study's answers; loaded after the page, because steps are replayed for it."""
    study = get_object_or_404(Study.objects.select_related("baseline"), pk=pk)

    def answered() -> dict[str, Any]:
        view = view_of(request, study)
        alike = scaling.like_for_like(study.kind, view)
        return {"asked": report_answers.of_overview(alike, report_answers.steps_of(alike))}

    content = answer_cache.of_ended(study, ["questions", request.GET.get("baseline", "")], answered)
    return render(request, "studies/parts/questions.html", {"study": study, **content})


def _gantt_src(request: HttpRequest, study: Study) -> str:
    """The address of the Gantt charts. Without a choice in the page's own address it names no runs: which ones are
    drawn changes while runs go on."""
    asked = {name: value for name in ("show", "baseline") if (value := request.GET.get(name))}
    return reverse("studies:gantt", args=(study.pk,)) + (f"?{urlencode(asked)}" if asked else "")


@require_GET
def gantt(request: HttpRequest, pk: int) -> JsonResponse:
    """Gantt charts of the runs in ?show=; without it, of the fastest, the slowest, the baseline and one more."""
    study = get_object_or_404(Study.objects.select_related("baseline"), pk=pk)
    view = view_of(request, study)
    rows = gantts.default_rows(view, numbers(request.GET.get("show", "")))
    return JsonResponse(gantts.of_rows(rows).as_dict())


@token_may_read
@require_GET
def table_csv(request: HttpRequest, pk: int) -> HttpResponse:
    """The full table; numbers in SI units without rounding."""
    study = get_object_or_404(Study.objects.select_related("baseline"), pk=pk)
    response = HttpResponse(content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="study-{study.pk}.csv"'
    file = csv.writer(response)
    if own := OWN_PAGES.get(study.kind):
        file.writerows(own.rows(study))
    else:
        file.writerows([table.COLUMNS, *table.rows(view_of(request, study))])
    return response


@require_POST
def run_again(request: HttpRequest, pk: int) -> HttpResponse:
    """Queues the runs that were disturbed or cut off once more, or (`which=cancelled`) those that were cancelled; says
    which of them no worker takes now, and why."""
    stopped = request.POST.get("which") == "cancelled"
    which = reruns.WHICH["cancelled" if stopped else "repeatable"]
    refused: dict[int, str] = {}
    study = get_object_or_404(Study, pk=pk)
    queued = reruns.run_again(study=study, user=request.user, which=which, refused=refused)
    if queued and (waiting := reruns.waiting_text(reruns.by_name(reruns.waits(queued)))):
        messages.warning(request, f"Queued, but they wait. {waiting}")
    if refused:
        whys = reruns.by_reason(reruns.by_name(refused))
        messages.error(request, f"{'Left out' if queued else 'Nothing was queued'}. {whys}")
    elif not queued:
        what = "cancelled" if stopped else "disturbed or cut off"
        messages.info(request, f"Nothing was queued: no run was {what}, or all are under way again.")
    return redirect("studies:page", pk=pk)


@require_POST
@again_after_deadlock
def save_baseline(request: HttpRequest, pk: int) -> HttpResponse:
    """Saves a run of the study as its baseline, for all users."""
    study = get_object_or_404(Study, pk=pk)
    if not may_change(request.user, study):
        raise PermissionDenied("Only the study's owner and admins may keep another baseline.")
    with transaction.atomic():
        # both stay until then; the study first, as who deletes it with its runs
        locked = get_object_or_404(Study.objects.select_for_update(no_key=True), pk=pk)
        runs = locked.runs.select_for_update(no_key=True)
        run = get_object_or_404(runs, pk=number(request.POST.get("baseline")) or 0)
        if run != locked.baseline:
            Study.objects.filter(pk=pk).update(baseline=run)
            user: Any = request.user
            was = f", instead of “{locked.baseline.name}”" if locked.baseline else ""
            text = f"{user.get_username()} made “{run.name}” the baseline{was}."
            locked.events.create(kind="baseline", text=text, actor=user)
    return redirect("studies:page", pk=pk)
