"""Pages of the planner. Nothing is stored: what a page shows depends only on its query."""

from __future__ import annotations

import csv
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe
from django.views.decorators.vary import vary_on_headers

from dashboard.accounts.guards import token_may_read
from dashboard.charts.theme import LEGEND
from dashboard.ledger import selectors as ledger
from dashboard.ledger.fleet_page import MIB
from dashboard.plans import planner_charts, planner_page
from dashboard.plans.forms import PlannerForm, said
from dashboard.plans.launch import launch
from dashboard.plans.setups import searched
from dashboard.plans.tabs import TABS
from parallel_core.analysis.quantities import sentence_text
from parallel_core.plan.cluster import accuracy, arguments, exported
from parallel_core.plan.cluster.hardware import GIB
from parallel_core.plan.cluster.plan_timeline import MOST_ROWS
from parallel_core.plan.cluster.questions import QUESTIONS, ask

EXPORTED = 200
"""The most plans in an export: the fastest of each layout first."""


def framed(tab: str, **context: Any) -> dict[str, Any]:
    """The context that every page of the planner needs."""
    return {"tabs": TABS, "tab": tab, **context}


def answered(request: HttpRequest, page: str, context: dict[str, Any]) -> HttpResponse:
    """Renders `plans/<page>.html`, or for HTMX only the part that depends on the form."""
    part = "_result" if request.headers.get("HX-Request") else ""
    return render(request, f"plans/{page}{part}.html", context)


@require_safe
@vary_on_headers("HX-Request")
def planner(request: HttpRequest) -> HttpResponse:
    """The best plans of a model on a cluster; `?plan=` shows another one in detail."""
    form = PlannerForm(request.GET.dict(), ledger.measured())
    context = framed("page", form=form, valid=form.is_valid(), fleet=_of_fleet(form))
    if context["valid"]:
        context |= _planned(form)
        context["of_layout"] = _of_layout(request)
    return answered(request, "planner", context)


def _of_layout(request: HttpRequest) -> str:
    """The parameters of the layout picture in the query: the chosen rank, and the tensor split to draw."""
    asked = {name: request.GET[name] for name in ("rank", "split") if name in request.GET}
    return f"&{urlencode(asked)}" if asked else ""


def _of_fleet(form: PlannerForm) -> str:
    """The query of the plans for this fleet if that is the chosen cluster; else ''."""
    if form.fleet is None or form.errors:
        return ""
    devices, memory = form.cleaned_data["devices"], form.cleaned_data["memory"]
    asked = {"profile": form.fleet, "devices": devices, "memory": memory and memory * GIB / MIB}
    return urlencode({name: value for name, value in asked.items() if value})


def _planned(form: PlannerForm) -> dict[str, Any]:
    made = planner_page.view(form)
    judged = made.judged
    alone, (ranked, layouts) = planner_page.alone(made), planner_page.ranked(made)
    rows = [row for row in accuracy.step_times() if not row.fitted]
    context: dict[str, Any] = {
        "view": made,
        "judged": judged,
        "verdict": planner_page.verdict(made),
        "standing": planner_page.standing(made),
        "tiles": planner_page.tiles(made),
        "ranked": ranked,
        "layouts": layouts,
        "charts": planner_charts.all_charts(made),
        "alone": alone,
        "not_alone": planner_page.not_alone(made, alone),
        "record": accuracy.summary(rows),
        "query": planner_page.address(form),
        "legend": LEGEND,
    }
    if judged and judged.fix and not judged.fits:
        context["fixed"] = planner_page.address(form, plan=judged.fix.plan.label())
    if judged and judged.seconds:
        flags, missing = arguments.megatron(*made.setup, judged.plan)
        launcher = arguments.torchrun(made.setup.cluster, judged.plan)
        context["run_address"], context["why_no_run"] = launch(made.setup.job, judged.plan)
        context |= {"launcher": " ".join(launcher), "flags": flags, "missing": missing}
        context["to_time"] = arguments.to_time(made.setup.job)
        context["gantt_height"] = 56 * min(judged.plan.pp, MOST_ROWS) + 56
    return context


def _refused(form: PlannerForm) -> JsonResponse:
    return JsonResponse({"detail": f"These values cannot be planned. {said(form)}", "errors": form.errors}, status=422)


@require_safe
def timeline(request: HttpRequest) -> JsonResponse:
    """The predicted Gantt chart of the plan in the query."""
    form = PlannerForm(request.GET.dict())
    if not form.is_valid():
        return _refused(form)
    judged = planner_page.looked_at(form)
    if judged is None or judged.seconds is None:
        why = " ".join(judged.sentences) if judged else "Nothing fits."
        return JsonResponse({"detail": f"There is no such plan to draw. {why}"}, status=404)
    try:
        return JsonResponse(planner_charts.timeline(form.setup, judged.plan).as_dict())
    except ValueError as error:
        return JsonResponse({"detail": sentence_text(str(error))}, status=422)


@require_safe
def questions(request: HttpRequest) -> HttpResponse:
    """The questions with their answers: a part of the page that is loaded when it is opened."""
    form = PlannerForm(request.GET.dict())
    if not form.is_valid():
        return HttpResponse(said(form), "text/plain; charset=utf-8", 422)
    job, cluster = form.setup
    found = searched(job, cluster, form.space)
    answers = [ask(name, job, cluster, found) for name in QUESTIONS]
    return render(request, "plans/parts/questions.html", {"answers": answers})


@token_may_read
@require_safe
def export(request: HttpRequest, kind: str) -> HttpResponse:
    """The plans of the page as JSON or CSV: the fastest of each layout."""
    form = PlannerForm(request.GET.dict())
    if not form.is_valid():
        return _refused(form)
    rows = exported.rows(*form.setup, searched(*form.setup, form.space), EXPORTED)
    if kind == "json":
        return JsonResponse({"predicted": True, "data": rows})
    answer = HttpResponse(content_type="text/csv", headers={"Content-Disposition": 'attachment; filename="plans.csv"'})
    writer = csv.DictWriter(answer, list(rows[0]) if rows else ["label"])
    writer.writeheader()
    writer.writerows(rows)
    return answer
