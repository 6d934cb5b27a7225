"""A study as one printable page that needs no other file: no script, stylesheet or image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.template.loader import render_to_string
from django.utils import timezone
from django.views.decorators.http import require_GET

from dashboard.accounts.guards import token_may_read
from dashboard.charts import svg
from dashboard.charts.chart import Chart
from dashboard.numbers import numbers
from dashboard.studies import postmortem, scaling
from dashboard.studies.models import Study
from dashboard.studies.overview import (
    answer_cache,
    answers,
    columns,
    few_rows,
    figures,
    findings,
    gantts,
    held_out,
    method,
    streams,
    swept,
)
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.overview.rows import Row
from dashboard.studies.own_pages import OWN_PAGES
from dashboard.studies.report import report_answers
from dashboard.studies.selectors import held_equal
from dashboard.studies.views import target, view_of
from parallel_core.analysis.quantities import percent_text

SHARES = {
    "Compute": ("compute",),
    "Recompute": ("recompute",),
    "Communication": ("exposed_p2p", "exposed_collective"),
    "Bubble": ("bubble",),
    "Optimizer": ("optimizer",),
    "Other": ("data", "other"),
}
"""Column of the table of strategies -> components; together they are the whole traced step."""


@token_may_read
@require_GET
def report(request: HttpRequest, pk: int) -> HttpResponse:
    """Method, table of strategies, written answers, and each chart with its sentence and numbers.

    `?baseline=`, `?show=`, `?target=` and `?rows=` are as on the study's page; `?download=1` makes it a file to save.
    """
    study = get_object_or_404(Study.objects.select_related("owner", "baseline"), pk=pk)
    if study.kind in OWN_PAGES:
        return redirect("studies:page", pk)  # its page has everything in one table
    download = bool(request.GET.get("download"))
    asked = [request.GET.get(name, "") for name in ("baseline", "show", "target", "rows")]
    content = answer_cache.of_ended(
        study, ["report", request.build_absolute_uri("/"), *asked], lambda: _content(request, study)
    )
    context = {**content, "study": study, "hatches": svg.hatches(), "made_at": timezone.now(), "kept": download}
    response = render(request, "studies/report.html", context)
    if download:
        response["Content-Disposition"] = f'attachment; filename="study-{study.pk}-report.html"'
    return response


def _content(request: HttpRequest, study: Study) -> dict[str, Any]:
    """What is cached of the report: its `body`, and what its first lines need of the runs."""
    view = view_of(request, study)
    stream_charts, stream_answers = streams.of_overview(view, target(request))
    said, chosen = _said(study, view), _chosen(request, view)
    verdict = streams.verdict(study.kind, said["verdict"], view, stream_charts)
    here = request.build_absolute_uri(request.path)
    context = {
        **said,
        **_listed(request, study, view, verdict, streams.below(verdict, stream_charts)),
        "verdict": verdict,
        "answers": [*said["answers"], *stream_answers],
        "judgement": findings.of_overview(view),
        "postmortem": postmortem.of_study(study, view),
        "every": f"{here}?{urlencode({**chosen, 'rows': 'all'})}",
        "origin": request.build_absolute_uri("/").removesuffix("/"),
        "address": request.build_absolute_uri(f"/studies/{study.pk}/?{urlencode(chosen)}".rstrip("?")),
    }
    return {
        "body": render_to_string("studies/report_body.html", context),
        "equal": context["equal"],
        "address": context["address"],
        "to_keep": f"?{urlencode({'download': 1, **chosen})}",
    }


def _listed(
    request: HttpRequest, study: Study, view: Overview, verdict: Sequence[str], last: Mapping[str, Chart]
) -> dict[str, Any]:
    """The table and the charts, of many runs with the first and those that are named: see `few_rows`. `last` = charts
    after all others."""
    alike = scaling.like_for_like(study.kind, view)
    made = figures.of_overview(alike)
    few = few_rows.few_of(request, view, [*verdict, *(chart.title for chart in made.values())])
    charts = [*_charts(request, study, view, few_rows.cut(made, alike, few)), *last.values()]
    return {
        "few": few,
        "shown": {column.key: True for column in columns.with_values(view.rows)},
        "table": [(row, shares(row)) for row in few.shown.rows],
        "charts": [few_rows.listed(chart, few) for chart in charts],
    }


def _said(study: Study, view: Overview) -> dict[str, Any]:
    """Verdict, method, table and answers."""
    alike = scaling.like_for_like(study.kind, view)
    steps = report_answers.steps_of(alike)
    return {
        "study": study,
        "view": view,
        "verdict": scaling.verdict(study, view),
        "equal": held_equal([row.spec for row in view.rows], max((row.run.devices for row in view.rows), default=0)),
        "method": method.of_overview(view, steps.values()),
        "shares": SHARES,
        "written": report_answers.of_overview(alike, steps),
        "answers": answers.of_overview(alike),
    }


def _charts(request: HttpRequest, study: Study, view: Overview, made: Mapping[str, Chart]) -> list[Chart]:
    """All charts in their order; `made` = those of the overview."""
    return [
        *swept.of_overview(study.kind, view).values(),
        *scaling.of_overview(study, view).values(),
        *made.values(),
        gantts.of_rows(gantts.default_rows(view, numbers(request.GET.get("show", "")))),
        figures.losses(view),
        *held_out.chart(view).values(),
    ]


def _chosen(request: HttpRequest, view: Overview) -> dict[str, str]:
    """The parameters that determine what the report says, for addresses of the same: its baseline, and what was asked
    for."""
    baseline = {"baseline": str(view.baseline.run.pk)} if view.baseline else {}
    return baseline | {name: asked for name in ("show", "target", "rows") if (asked := request.GET.get(name))}


def shares(row: Row) -> list[str]:
    """Shares of the traced step, in the order of SHARES; empty texts if none was traced."""
    parts = row.entry.breakdown
    if parts is None:
        return [""] * len(SHARES)
    return [percent_text(sum(map(parts.share, names))).replace("under ", "< ") for names in SHARES.values()]
