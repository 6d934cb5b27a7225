"""The layout of a plan as a picture: a part of the Planner page that is loaded when it is opened."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.http import require_safe
from django.views.decorators.vary import vary_on_headers
from pydantic import ValidationError

from dashboard.plans import planner_page
from dashboard.plans.forms import PlannerForm, said
from dashboard.plans.launch import run_of
from dashboard.plans.tabs import TABS
from dashboard.runs.form.form_words import first_error
from dashboard.runs.layout.hosts import even
from dashboard.runs.layout.picture import asked_rank, picture
from parallel_core.rules import field_errors


@require_safe
@vary_on_headers("HX-Request")
def layout(request: HttpRequest) -> HttpResponse:
    """The layout of the plan in the query, as the run that *Launch this plan* makes of it.

    `?rank=` chooses a rank, `?split=` how tensor groups are cut. Opened directly it is a page of its own; an invalid
    query is then redirected to the Planner, which shows the errors at its fields.
    """
    form = PlannerForm(request.GET.dict())
    if not form.is_valid():
        if not _is_part(request):
            return redirect(f"{reverse('plans:page')}?{request.GET.urlencode()}")
        return HttpResponse(said(form), "text/plain; charset=utf-8", 422)
    judged = planner_page.looked_at(form)
    if judged is None:
        return _undrawn(request, form, "Nothing fits, so there is nothing to draw.", 404)
    try:
        spec = run_of(form.setup[0], judged.plan, "cuda")
    except ValidationError as error:
        why = first_error(field_errors(error))
        return _undrawn(request, form, f"The engine has no such run to draw: {why}", 422)
    rank = asked_rank(request.GET.get("rank"))
    found = picture(spec, rank, request.GET.get("split", ""), even(spec.parallel.world, form.setup[1].per_host))
    page = reverse("plans:page") + planner_page.address(form, plan=judged.plan.label())
    context = {
        "layout": found,
        "ranks_at": (f"{page}&rank=", f"{found.query}#layout"),
        "splits_at": (f"{page}&rank={found.rank}&split=", "#layout"),
    }
    return _shown(request, form, context)


def _is_part(request: HttpRequest) -> bool:
    return bool(request.headers.get("HX-Request"))


def _undrawn(request: HttpRequest, form: PlannerForm, why: str, status: int) -> HttpResponse:
    """Says why there is no picture; as a part of the page, in place of the text that ranks are being drawn."""
    if _is_part(request):
        return HttpResponse(format_html('<p class="sub">{}</p>', why))
    return _shown(request, form, {"why_not": why}, status)


def _shown(request: HttpRequest, form: PlannerForm, context: dict[str, Any], status: int = 200) -> HttpResponse:
    """The picture, or why there is none: as a part of the page, or as a whole page."""
    if _is_part(request):
        return render(request, "runs/page_layout.html", context)
    framed = {"tabs": TABS, "tab": "page", "query": planner_page.address(form)}
    return render(request, "plans/layout.html", {**context, **framed}, status=status)
