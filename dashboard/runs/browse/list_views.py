"""The runs list: the page and its refreshed part, exports, and the redirect to a comparison."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBadRequest,
    JsonResponse,
    QueryDict,
    StreamingHttpResponse,
)
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard.accounts.guards import token_may_read
from dashboard.accounts.roles import may_submit
from dashboard.csv_cells import no_formula
from dashboard.json_values import finite
from dashboard.live.changes import priced
from dashboard.numbers import numbers
from dashboard.runs.browse import field_terms
from dashboard.runs.browse.listing import Listing, options
from dashboard.runs.models import ENDED, Run, State
from dashboard.runs.selectors import list_runs
from dashboard.runs.waiting.priority import Priority
from dashboard.streaming import Echo, streamed

MAX_EXPORT = 10_000
"""The most runs in one JSON document, which is made in memory. A CSV file is streamed and has them all."""
EXPORT_BATCH = 500
MAX_TICKED = 500
NONE_TICKED = "No run of this yard was selected: tick at least one."
NONE_THERE = "None of the selected runs is in this yard any more."
FIELDS = (
    "id",
    "name",
    "state",
    "cause",
    "detail",
    "strategy",
    "owner",
    "study",
    "tags",
    "broken",
    "devices",
    "step",
    "loss",
    "step_time_s",
    "tokens_per_s",
    "memory_peak_bytes",
    "created_at",
    "started_at",
    "ended_at",
    "steps_done",
    "final_loss",
    "held_out",
    "notes",
    "run_on",
    "priority",
    "first_started_at",
)
"""Names of a run's record. A new one comes last: some read the file by the position of a column. Behind them come the
leaves of the spec, in an order that changes with the spec."""


@require_safe
@priced
def runs(request: HttpRequest) -> HttpResponse:
    """The whole page, or for HTMX only the results. The state of the list is the query string."""
    listing = Listing.parse(request.GET)
    page = listing.read()
    held_out = listing.held_out(page)
    context = {"listing": listing, "page": page, "may_submit": may_submit(request.user)}
    context |= {"held_out": held_out, "headers": list(listing.headers(held_out))}
    partial = request.headers.get("HX-Request") and not request.headers.get("HX-History-Restore-Request")
    if partial:
        response = render(request, "runs/list_results.html", context)
        # The canonical address: a filter form also sends its empty fields.
        response.headers["HX-Push-Url"] = request.path + listing.query().rstrip("?")
    else:
        context |= {"states": State.choices, "options": options(listing.filters)}
        response = render(request, "runs/list.html", context)
    # Page and part have the same address: a cache must not hand out one for the other.
    response.headers["Vary"] = "HX-Request, Cookie"
    return response


@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    """Redirects from the ticked boxes of the list (runs=1&runs=2) to the shareable address of the comparison."""
    wanted = ticked(request.GET)
    if not wanted:
        return redirect("runs:list")
    return redirect(f"/compare/?runs={','.join(map(str, wanted))}")


def back_to(request: HttpRequest) -> str:
    """The address of the list with the filters it had when its boxes were ticked."""
    return reverse("runs:list") + Listing.parse(request.GET).query().rstrip("?")


def ticked(given: QueryDict) -> list[int]:
    """Ids of the runs whose boxes were ticked."""
    return numbers(",".join(given.getlist("runs")))[:MAX_TICKED]


def none_of(wanted: Sequence[int]) -> str:
    """Why there is nothing to be done to the `wanted` runs, of which none is in the yard."""
    return NONE_THERE if wanted else NONE_TICKED


@token_may_read
@require_safe
def export_csv(request: HttpRequest) -> HttpResponseBase:
    """The filtered list, all pages; 400 if a value of its address means nothing."""
    if refusal := _refusal(request):
        return refusal
    headers = {"Content-Disposition": 'attachment; filename="runs.csv"'}
    return StreamingHttpResponse(
        streamed(_lines(_listed(request))), content_type="text/csv; charset=utf-8", headers=headers
    )


@token_may_read
@require_safe
def export_json(request: HttpRequest) -> HttpResponse:
    """The first `limit` of the filtered list, whatever its page, and how many there are, in the envelope of the API;
    400 as for the CSV file."""
    if refusal := _refusal(request):
        return refusal
    listed = _listed(request)
    rows = list(_rows(listed[:MAX_EXPORT]))
    return JsonResponse({"data": rows, "meta": {"count": len(rows), "total": len(listed), "limit": MAX_EXPORT}})


def _refusal(request: HttpRequest) -> HttpResponse | None:
    """The answer to an address with a value that means nothing, or a study that there is not: a file cannot say that
    it was left out."""
    wrong = Listing.parse(request.GET).ignored
    return HttpResponseBadRequest("\n".join(wrong), content_type="text/plain; charset=utf-8") if wrong else None


def _listed(request: HttpRequest) -> list[int]:
    """The ids of the filtered list, in its order."""
    return list(list_runs(Listing.parse(request.GET).filters).values_list("pk", flat=True))


def _rows(listed: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The runs as records. Read in batches, so that no query stays open while a slow reader takes the rows."""
    runs = Run.objects.select_related("owner").defer("summary")
    for start in range(0, len(listed), EXPORT_BATCH):
        batch = listed[start : start + EXPORT_BATCH]
        found = runs.in_bulk(batch)
        yield from (as_row(found[pk]) | spec_row(found[pk].spec) for pk in batch if pk in found)


def _lines(listed: Sequence[int]) -> Iterator[str]:
    out, names = csv.writer(Echo()), (*FIELDS, *spec_row({}))
    yield out.writerow(names)
    for row in _rows(listed):
        yield out.writerow([_cell(row[name]) for name in names])


def spec_row(spec: Mapping[str, Any]) -> dict[str, Any]:
    """`spec.train.lr` etc. -> value, for every leaf of `field_terms.leaves`; None for one that the spec lacks."""
    leaves = (path.split(".", 1) for path in field_terms.leaves())
    return {f"spec.{section}.{leaf}": spec.get(section, {}).get(leaf) for section, leaf in leaves}


def as_row(run: Run) -> dict[str, Any]:
    """A run as one flat record, in the order of FIELDS. A loss that is not finite becomes None, because JSON has no
    NaN."""
    values = (
        *(run.pk, run.name, run.state, run.cause, run.detail, run.label, run.owner.get_username(), run.study_id),
        *(
            run.tags,
            run.injected,
            run.devices,
            run.step,
            finite(run.loss),
            run.step_time,
            run.tokens_per_s,
            run.memory_peak,
        ),
        *(run.created_at, run.started_at, run.ended_at, run.steps_done),
        *(finite(run.loss) if run.state in ENDED else None, finite(run.held_out), run.notes),
        *(run.run_on, Priority(run.priority).word, run.first_started_at),
    )
    return dict(zip(FIELDS, values, strict=True))


def _cell(value: Any) -> Any:
    """A value for CSV: lists joined by commas, no text that a spreadsheet would run as a formula."""
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    if isinstance(value, str):
        return no_formula(value)
    return "" if value is None else value
