"""Downloads of a traced step: a Chrome trace (for Perfetto, or for upload under Traces), or CSV."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import numpy as np
from django.http import Http404, HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_safe

from dashboard import errors
from dashboard.accounts.guards import token_may_read
from dashboard.runs import selectors
from dashboard.runs.models import Run
from dashboard.runs.tracing import traces
from dashboard.streaming import Echo, streamed
from parallel_core.analysis.export import COLUMNS, About, chrome_trace, table
from parallel_core.layout import Layout


class Spans(Protocol):
    """The spans of a step by rank, and the layout of its ranks."""

    @property
    def spans(self) -> Mapping[int, np.ndarray]: ...

    @property
    def layout(self) -> Layout: ...


@token_may_read
@require_safe
def trace(request: HttpRequest, pk: int, step: int, form: str) -> HttpResponseBase:
    """The file of a step; `form` is one of FORMS. 404 if the run has no such traced step, or no spans of it."""
    run = get_object_or_404(Run.objects.select_related("study"), pk=pk)
    found = traces.trace(run, step)
    if found is None and (dropped := selectors.dropped_text(run, step)):
        return errors.page(request, 404, "No spans of this step", dropped)
    if found is None or form not in FORMS:
        raise Http404(f"run {pk} has no traced step {step} as '{form}'; it can be had as {' or '.join(FORMS)}")
    return as_file(found, form, f"run-{pk}-step-{step}", found.about)


def as_file(found: Spans, form: str, name: str, about: About) -> StreamingHttpResponse:
    """Streams the spans of a step as one of FORMS; the browser saves it as `name` with the form's ending."""
    content, ending, pieces = FORMS[form]
    response = StreamingHttpResponse(streamed(pieces(found, about)), content_type=content)
    response.headers["Content-Disposition"] = f'attachment; filename="{name}{ending}"'
    return response


def _chrome(found: Spans, about: About) -> Iterator[str]:
    return chrome_trace(found.spans, found.layout, about)


def _gzipped(found: Spans, about: About) -> Iterator[bytes]:
    return _packed(_chrome(found, about))


def _packed(pieces: Iterable[str]) -> Iterator[bytes]:
    made = zlib.compressobj(wbits=31)
    for piece in pieces:
        if data := made.compress(piece.encode()):
            yield data
    yield made.flush()


def _csv(found: Spans, about: About) -> Iterator[str]:
    out = csv.writer(Echo())
    yield out.writerow(COLUMNS)
    for row in table(found.spans, found.layout):
        yield out.writerow(row)


FORMS: dict[str, tuple[str, str, Callable[[Spans, About], Iterator[str] | Iterator[bytes]]]] = {
    "chrome": ("application/json", ".trace.json", _chrome),
    "chrome-gz": ("application/gzip", ".trace.json.gz", _gzipped),
    "csv": ("text/csv; charset=utf-8", ".csv", _csv),
}
