"""The Judge page: two or more set-ups, the verdict first; and the gallery of ready cases."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe
from django.views.decorators.vary import vary_on_headers

from dashboard.accounts.roles import may_submit
from dashboard.plans import judge_page, scenarios
from dashboard.plans.forms import said
from dashboard.plans.judge_forms import LETTERS, query, read_forms, wrong_count
from dashboard.plans.views import answered, framed
from dashboard.studies import breakages


@require_safe
@vary_on_headers("HX-Request")
def judge(request: HttpRequest) -> HttpResponse:
    """Judges the set-ups in the query."""
    given = request.GET.dict()
    forms, wrong = read_forms(given), wrong_count(given)
    valid = all(form.is_valid() for form in forms) and not wrong
    context: dict[str, Any] = framed("judge", forms=forms, valid=valid, count=len(forms), wrong=wrong)
    context["more"] = f"?{query(forms, n=str(len(forms) + 1))}" if len(forms) < len(LETTERS) else ""
    context["fewer"] = f"?{query(forms[:-1])}" if len(forms) > 2 else ""
    if valid:
        found = judge_page.cases(forms)
        context |= {
            "cases": [(case, judge_page.facts(case)) for case in found],
            "verdict": judge_page.verdict(found),
            "chart": judge_page.bars(found),
            "several": len(judge_page.several_clusters(found)),
            "query": query(forms),
        }
    return answered(request, "judge", context)


@require_safe
def common(request: HttpRequest) -> HttpResponse:
    """One plan for the clusters of the set-ups: a part of the page that is loaded when it is opened."""
    given = request.GET.dict()
    forms, wrong = read_forms(given), wrong_count(given)
    if not all(form.is_valid() for form in forms) or wrong:
        return HttpResponse(" ".join([wrong, *map(said, forms)]).strip(), "text/plain; charset=utf-8", 422)
    return render(request, "plans/parts/common.html", {"common": judge_page.common(judge_page.cases(forms))})


@require_safe
def gallery(request: HttpRequest) -> HttpResponse:
    """Ready cases, each with its verdict."""
    broken = {"breakages": breakages.offered(), "may_submit": may_submit(request.user)}
    return render(request, "plans/scenarios.html", framed("scenarios", cards=scenarios.cards(), **broken))
