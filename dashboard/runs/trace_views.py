"""A traced step as a file: for Perfetto, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from django.http import Http404, HttpRequest, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from dashboard.runs import traces
from dashboard.runs.models import Run
from dashboard.runs.traces import Trace
from parallel_core.analysis.export import COLUMNS, chrome_trace, table

LINES_A_PIECE = 2_000


@require_safe
def trace(request: HttpRequest, pk: int, step: int, form: str) -> StreamingHttpResponse:
    """`form` chrome or csv; 404 where the run has no such traced step."""
    found = traces.trace(get_object_or_404(Run.objects.select_related("study"), pk=pk), step)
    if found is None or form not in FORMS:
        raise Http404(f"run {pk} has no traced step {step} as '{form}'; it can be had as {' or '.join(FORMS)}")
    content, ending, pieces = FORMS[form]
    response = StreamingHttpResponse(pieces(found), content_type=content)
    response.headers["Content-Disposition"] = f'attachment; filename="run-{pk}-step-{step}{ending}"'
    return response


def _chrome(found: Trace) -> Iterator[str]:
    return chrome_trace(found.spans, found.layout)


def _csv(found: Trace) -> Iterator[str]:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for i, row in enumerate(table(found.spans, found.layout), 1):
        writer.writerow(row)
        if i % LINES_A_PIECE == 0:
            yield out.getvalue()
            out.seek(0)
            out.truncate()
    yield out.getvalue()


FORMS = {
    "chrome": ("application/json", ".trace.json", _chrome),
    "csv": ("text/csv; charset=utf-8", ".csv", _csv),
}
