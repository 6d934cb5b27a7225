"""A run as one printable page that needs no other file: no script, stylesheet or image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from dashboard.accounts.guards import token_may_read
from dashboard.charts import svg, theme
from dashboard.runs import findings, selectors
from dashboard.runs.form import spec_table
from dashboard.runs.memory_limits import memory_limit
from dashboard.runs.models import ENDED, Run
from dashboard.runs.page import charts, metric_charts
from dashboard.runs.page.metric_rows import metrics_of
from dashboard.runs.page.tiles import tiles
from dashboard.runs.page.verdict import verdict
from parallel_core.analysis.rows import durations
from parallel_core.analysis.waits import BLOCKING, Waited, among, waited_if_whole
from parallel_core.layout import Layout
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec

DRAWN = 1_000
"""The most spans of the step that a report draws: the longest."""
HIDDEN = (Kind.STEP, Kind.PAIR)


@dataclass(frozen=True)
class Bar:
    """A span in percent of the step."""

    phase: str
    left: float
    width: float


@dataclass(frozen=True)
class Strip:
    rank: int
    bars: list[Bar]


@token_may_read
@require_safe
def report(request: HttpRequest, pk: int) -> HttpResponse:
    """Verdict, findings, one traced step, and each chart with its sentence, picture and numbers.

    If the step's Gantt chart would be a heatmap, its longest spans are drawn instead.
    """
    run = get_object_or_404(Run.objects.select_related("owner", "study"), pk=pk)
    metrics = zip(metrics_of(run), metric_charts.metrics(run), strict=True)
    context = _step(run) | {
        "run": run,
        "verdict": verdict(run),
        "ended": run.state in ENDED,
        "tiles": tiles(run),
        "findings": findings.findings(run),
        "metrics": [
            (metric.with_unit, chart, svg.drawn(chart.figure, svg.HALF)) for metric, chart in metrics if not chart.empty
        ],
        "hatches": svg.hatches(),
        "memory": charts.memory_rows(run, memory_limit(run, selectors.attempt_of(run))),
        "spec_groups": spec_table.groups(run.spec),
        "made_at": timezone.now(),
        "address": request.build_absolute_uri(reverse("runs:page", args=(pk,))),
    }
    return render(request, "runs/report.html", context)


def _step(run: Run) -> dict[str, Any]:
    """The context for the newest traced step."""
    spans, gantt = selectors.spans(run), charts.timeline(run)
    is_picture = bool(gantt and gantt.picture)
    waited = None if is_picture else waited_if_whole(spans, Layout.of(RunSpec.stored(run.spec)))
    drawn = [] if is_picture else strips(spans, waited)
    return {
        "strips": drawn,
        "shown": sum(len(strip.bars) for strip in drawn),
        "total": sum(int((~np.isin(rows["kind"], HIDDEN)).sum()) for rows in spans.values()),
        "gantt": gantt,
    }


def strips(spans: Mapping[int, np.ndarray], waited: Mapping[int, Waited] | None = None) -> list[Strip]:
    """The step of each rank, with the DRAWN longest spans of all; [] without spans. A rank is idle while it `waited` in
    a collective."""
    if not spans or not all(map(len, spans.values())):
        return []
    start = min(int(rows["start"].min()) for rows in spans.values())
    length = max(1, max(int(rows["end"].max()) for rows in spans.values()) - start)
    lengths = np.concatenate([durations(rows)[~np.isin(rows["kind"], HIDDEN)] for rows in spans.values()])
    least = int(np.sort(lengths)[-DRAWN]) if len(lengths) > DRAWN else 0
    working = {rank: _without_waits(rows, (waited or {}).get(rank)) for rank, rows in spans.items()}
    return [Strip(rank, _bars(rows, start, length, least)) for rank, rows in sorted(working.items())]


def _without_waits(rows: np.ndarray, waited: Waited | None) -> np.ndarray:
    """The rows with collectives that begin when their last rank has arrived."""
    if waited is None:
        return rows
    held, out = among(rows, BLOCKING) & (waited.ns > 0), rows.copy()
    out["start"][held] = waited.until[held]
    return out


def _bars(rows: np.ndarray, start: int, length: int, least: int) -> list[Bar]:
    """The bars; messages and collectives come last, because they are drawn over the others as a strip at the foot."""
    kept = rows[~np.isin(rows["kind"], HIDDEN) & (durations(rows) >= least)]
    made = [
        Bar(theme.phase_of(kind), 100 * (begin - start) / length, 100 * (end - begin) / length)
        for kind, begin, end in zip(kept["kind"].tolist(), kept["start"].tolist(), kept["end"].tolist(), strict=True)
    ]
    return sorted(made, key=lambda bar: bar.phase == "communication")
