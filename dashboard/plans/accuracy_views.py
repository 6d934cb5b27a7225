"""The Accuracy page: published tables with the prediction, the measurement and the error of each row."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from dashboard.plans import accuracy_bubbles, accuracy_page
from dashboard.plans.views import framed


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    sections = [make() for make in accuracy_page.SECTIONS]
    return render(request, "plans/accuracy.html", framed("accuracy", sections=sections))


@require_safe
def bubbles(request: HttpRequest, model: str) -> HttpResponse:
    """The zero-bubble rows of one model; some seconds the first time."""
    try:
        tables = accuracy_bubbles.tables_of(model)
    except KeyError as error:
        raise Http404(f"The tables have no model {model}.") from error
    return render(request, "plans/accuracy/bubbles_part.html", {"tables": tables})
