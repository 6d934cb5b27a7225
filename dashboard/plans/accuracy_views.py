"""The Accuracy page: published tables with the prediction, the measurement and the error of each row."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe
from django.views.decorators.vary import vary_on_headers

from dashboard.analyst.services import ask
from dashboard.analyst.shown import unanswered
from dashboard.plans import accuracy_bubbles, accuracy_page
from dashboard.plans.views import framed
from parallel_core.plan.cluster.zero_bubble import models
from parallel_core.searches.bubbles import Answer


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    sections = [make() for make in accuracy_page.SECTIONS]
    return render(request, "plans/accuracy.html", framed("accuracy", sections=sections))


@require_safe
@vary_on_headers("HX-Request")
def bubbles(request: HttpRequest, model: str) -> HttpResponse:
    """The zero-bubble rows of one model: a part of the page, or a page of its own for a browser without JavaScript."""
    if model not in models():
        raise Http404(f"The tables have no model {model}.")
    search = ask("bubbles", {"model": model}, lambda: {"model": model}, asker=None)  # one a model of the tables
    wait = unanswered(search, f"{model}: simulating every rate", request.path, reverse("plans:accuracy"), request.user)
    context = framed("accuracy", model=model, wait=wait)
    if wait is None:
        context["tables"] = accuracy_bubbles.tables_of(model, Answer.model_validate(search.answer))
    part = "part" if request.headers.get("HX-Request") else "page"
    return render(request, f"plans/accuracy/bubbles_{part}.html", context)
