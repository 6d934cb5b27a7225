"""Every point of every series of a run as a file. Only one series at a time is in memory."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator

from django.http import StreamingHttpResponse

from dashboard.json_values import finite_list
from dashboard.runs import selectors
from dashboard.runs.models import Run, SeriesChunk
from dashboard.runs.selectors import Series
from dashboard.streaming import Echo, streamed


def as_csv(run: Run) -> StreamingHttpResponse:
    """A row a point: series, rank, step, unix time, value."""
    response = StreamingHttpResponse(streamed(_rows(run)), content_type="text/csv; charset=utf-8")
    response.headers["Content-Disposition"] = f'attachment; filename="run-{run.pk}-series.csv"'
    return response


def as_json(run: Run) -> StreamingHttpResponse:
    """The run with its series by `name:rank`, each as step, time and value; null for a value that is no number."""
    return StreamingHttpResponse(streamed(_document(run)), content_type="application/json")


def _rows(run: Run) -> Iterator[str]:
    out = csv.writer(Echo())
    yield out.writerow(("series", "rank", "step", "time", "value"))
    for name, rank, series in _every(run):
        for row in zip(series.step.tolist(), series.time.tolist(), series.value.tolist(), strict=True):
            yield out.writerow((name, rank, *row))


def _document(run: Run) -> Iterator[str]:
    head = json.dumps({"run": run.pk, "name": run.name, "state": run.state, "spec": run.spec})
    yield f'{head[:-1]}, "series": {{'
    comma = ""
    for name, rank, series in _every(run):
        points = {"step": series.step.tolist(), "time": series.time.tolist(), "value": finite_list(series.value)}
        yield f"{comma}{json.dumps(f'{name}:{rank}')}: {json.dumps(points)}"
        comma = ", "
    yield "}}"


def _every(run: Run) -> Iterator[tuple[str, int, Series]]:
    rows = SeriesChunk.objects.filter(attempt__run=run).order_by("name", "rank").values_list("name", "rank").distinct()
    for name, rank in list(rows):
        yield name, rank, selectors.series(run, name, rank)
