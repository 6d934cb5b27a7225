"""A study as one printable page that needs nothing else: no script, no stylesheet, no picture."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET

from dashboard.studies import answers, figures, findings, fit, postmortem, scaling
from dashboard.studies.models import Study
from dashboard.studies.selectors import Overview, Row, held_equal
from dashboard.studies.views import numbers, view_of


@dataclass(frozen=True)
class Bar:
    """A speedup as lengths in percent of the widest mark: the bar, its whisker's two ends, and the ideal."""

    row: Row
    width: float
    low: float
    high: float
    ideal: float


@require_GET
def report(request: HttpRequest, pk: int) -> HttpResponse:
    """Verdict, answers, all numbers, and of each chart its sentence and its numbers; `?baseline=` as on the page."""
    study = get_object_or_404(Study.objects.select_related("owner", "baseline"), pk=pk)
    if study.kind == fit.KIND:
        return redirect("studies:page", pk)  # its one table says it all
    view = view_of(request, study)
    alike = scaling.like_for_like(study.kind, view)
    charts = [
        *scaling.of_overview(study, view).values(),
        *figures.of_overview(alike).values(),
        figures.gantts(figures.default_gantts(view, numbers(request.GET.get("show", "")))),
        figures.losses(view),
    ]
    context = {
        "study": study,
        "view": view,
        "verdict": scaling.verdict(study, view),
        "equal": held_equal([row.spec for row in view.rows], max((row.run.devices for row in view.rows), default=0)),
        "answers": answers.of_overview(alike),
        "judgement": findings.of_overview(view),
        "postmortem": postmortem.of_study(study, view),
        "charts": charts,
        "bars": bars(alike),
        "made_at": timezone.now(),
        "address": request.build_absolute_uri(study_address(study, view)),
    }
    return render(request, "studies/report.html", context)


def study_address(study: Study, view: Overview) -> str:
    """The live page with the report's own baseline."""
    chosen = f"?baseline={view.baseline.run.pk}" if view.baseline else ""
    return f"/studies/{study.pk}/{chosen}"


def bars(view: Overview) -> list[Bar]:
    found = [(row, row.entry.speed) for row in view.rows if row.entry.speed]
    widest = max((max(speed.high, row.entry.ideal or 0) for row, speed in found), default=1.0)
    return [
        Bar(row, *(100 * value / widest for value in (speed.ratio, speed.low, speed.high, row.entry.ideal or 0)))
        for row, speed in found
    ]
