"""The comparison of chosen runs: which they are stands in the address."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.charts.theme import LEGEND
from dashboard.runs.models import Run
from dashboard.studies import compare, figures
from dashboard.studies.selectors import Overview, overview
from dashboard.studies.views import gantt_src, number, numbers

MAX_COMPARED = 40
MAX_DRAWN = 12


@require_GET
def compare_page(request: HttpRequest) -> HttpResponse:
    """?runs=1,2,3&baseline=1: at most MAX_COMPARED runs in the table, at most MAX_DRAWN of them drawn."""
    asked = numbers(request.GET.get("runs", "") or ",".join(request.GET.getlist("run")))[:MAX_COMPARED]
    found = {run.pk: run for run in Run.objects.filter(pk__in=asked).select_related("study")}
    runs = [found[pk] for pk in asked if pk in found]
    base = found.get(number(request.GET.get("baseline")) or 0) or (runs[0] if runs else None)
    if base is None:
        return render(request, "studies/compare.html", {"view": None, "missing": asked})
    runs = [base, *(run for run in runs if run is not base)]
    view, drawn = overview(runs, base), overview(runs[:MAX_DRAWN], base)
    by_run = {row.run.pk: row for row in view.rows}
    rows = [by_run[run.pk] for run in runs]
    differing, same = compare.differences([row.spec for row in rows])
    target, reached = compare.time_to_loss(drawn)
    context = {
        "view": view,
        "rows": rows,
        "drawn": len(drawn.rows),
        "missing": [pk for pk in asked if pk not in found],
        "differing": differing,
        "same": same,
        "unlike": compare.unlike([row.spec for row in rows]),
        "verdict": compare.verdict(view, rows[1:]),
        "charts": _compare_charts(drawn, [row for row in rows if row.run.pk in {d.run.pk for d in drawn.rows}]),
        "gantt_src": gantt_src("studies:compare_gantt", [run.pk for run in runs[:MAX_DRAWN]]),
        "gantt_height": 56 * sum(run.devices for run in runs[:MAX_DRAWN]) + 80,
        "target": target,
        "reached": reached,
        "legend": LEGEND,
        "swap": _swapped(runs),
    }
    return render(request, "studies/compare.html", context)


def _compare_charts(drawn: Overview, rows: list[Any]) -> dict[str, Any]:
    made: dict[str, Any] = {**figures.of_overview(drawn), "loss": figures.losses(drawn), "steps": figures.steps(drawn)}
    if len(rows) == 2:
        made["waterfall"] = figures.difference(rows[0], rows[1])
    return made


def _swapped(runs: list[Run]) -> str:
    """Address of the same comparison with the second run as its baseline."""
    if len(runs) < 2:
        return ""
    ids = [str(run.pk) for run in (runs[1], runs[0], *runs[2:])]
    return f"?{urlencode({'runs': ','.join(ids), 'baseline': ids[0]}, safe=',')}"


@require_GET
def compare_gantt(request: HttpRequest) -> JsonResponse:
    wanted = numbers(request.GET.get("show", ""))[:MAX_DRAWN]
    found = {run.pk: run for run in Run.objects.filter(pk__in=wanted)}
    runs = [found[pk] for pk in wanted if pk in found]
    view = overview(runs, runs[0] if runs else None)
    by_run = {row.run.pk: row for row in view.rows}
    return JsonResponse(figures.gantts([by_run[run.pk] for run in runs]).as_dict())
