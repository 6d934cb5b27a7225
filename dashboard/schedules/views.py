"""The Schedules page: what each device of a pipeline does in one step. No run is needed; all of it is simulated."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe
from django.views.decorators.vary import vary_on_headers

from dashboard.charts import schedule
from dashboard.schedules import words
from dashboard.schedules.forms import ScheduleForm

LEGEND = (
    ("forward", "forward"),
    ("backward", "backward, or its input gradient"),
    ("weight", "weight gradient on its own"),
    ("idle", "idle (bubble)"),
)


@require_safe
@vary_on_headers("HX-Request")
def schedules(request: HttpRequest) -> HttpResponse:
    """Everything stands in the address; with HTMX the part that changes alone."""
    form = ScheduleForm(request.GET.dict())
    valid = form.is_valid()
    context = {
        "form": form,
        "lessons": words.lessons(),
        "valid": valid,
        "legend": LEGEND,
    }
    if valid:
        context |= {
            "verdict": words.comparison(form.lessons),
            "names": [words.name(made) for made in form.lessons],
            "table": words.table(form.lessons),
            "charts": schedule.charts(form.lessons, [words.finding(made) for made in form.lessons]),
        }
    template = "schedules/result.html" if request.headers.get("HX-Request") else "schedules/page.html"
    return render(request, template, context)
