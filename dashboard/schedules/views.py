"""The Schedules page: what each device of a pipeline does in one step. All of it is simulated; no run is needed."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe
from django.views.decorators.vary import vary_on_headers

from dashboard.accounts.guards import token_may_read
from dashboard.charts import schedule
from dashboard.schedules import searched, words
from dashboard.schedules.forms import ScheduleForm
from dashboard.schedules.lessons import lessons
from parallel_core.schedule.table import TableError, to_csv, to_json

LEGEND = (
    ("forward", "forward"),
    ("backward", "backward, or its input gradient"),
    ("weight", "weight gradient on its own"),
    ("idle", "idle (bubble)"),
)


@require_safe
@vary_on_headers("HX-Request")
def schedules(request: HttpRequest) -> HttpResponse:
    """The page for the form in the query; for HTMX only the part that changes."""
    form = ScheduleForm(request.GET.dict())
    valid = form.is_valid()
    context = {
        "form": form,
        "lessons": lessons(form),
        "valid": valid,
        "legend": LEGEND,
    }
    if valid:
        typed = form.cleaned_data["stages"]
        places = words.places(typed)
        context |= {
            "verdict": words.comparison(form.previews),
            "proofs": list(dict.fromkeys(map(words.proof, form.found))),
            "orders": [
                {"name": words.name(made), "run": searched.address(made.schedule), "files": _files(side, request)}
                for side, made in zip("ab", form.previews, strict=False)
                if not typed
            ],
            "names": [words.name(made) for made in form.previews],
            "table": words.table(form.previews, bool(typed)),
            "charts": schedule.charts(form.previews, [words.finding(made) for made in form.previews], places),
            "pace": words.pace(typed) if typed else "",
            "stages": words.stage_table(typed, form.previews),
        }
    template = "schedules/result.html" if request.headers.get("HX-Request") else "schedules/page.html"
    return render(request, template, context)


def _files(side: str, request: HttpRequest) -> list[tuple[str, str]]:
    """(name, address) of each file format of a schedule on the page."""
    query = request.GET.urlencode()
    return [(kind.upper(), f"{reverse('schedules:order', args=[side, kind])}?{query}") for kind in ("csv", "json")]


@token_may_read
@require_safe
def order(request: HttpRequest, side: str, kind: str) -> HttpResponse:
    """A schedule of the page as a file: PyTorch's CSV of its compute operations, or JSON. 404 if there is none."""
    form = ScheduleForm(request.GET.dict())
    shown = dict(zip("ab", form.previews, strict=False)) if form.is_valid() else {}
    if side not in shown or kind not in ("csv", "json"):
        raise Http404
    made = shown[side].schedule
    try:
        text, content = (to_csv(made), "text/csv") if kind == "csv" else (to_json(made), "application/json")
    except TableError as error:
        raise Http404(str(error)) from error
    return HttpResponse(text, content, headers={"Content-Disposition": f'attachment; filename="{made.name}.{kind}"'})
