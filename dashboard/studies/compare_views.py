"""The comparison of chosen runs, which are in the query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.db.models import Case, QuerySet, When
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from dashboard.charts.chart import Chart
from dashboard.charts.theme import LEGEND
from dashboard.live.changes import answer, priced
from dashboard.numbers import number, numbers
from dashboard.runs.browse.list_views import MAX_TICKED
from dashboard.runs.differences import differences
from dashboard.runs.findings import case_of
from dashboard.runs.models import Run, State
from dashboard.runs.places import NOWHERE, Place
from dashboard.schedules.glossary import words_of
from dashboard.studies import compare
from dashboard.studies.overview import by_loss, columns, few_rows, figures, gantts, held_out, swept
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.overview.rows import Row
from dashboard.studies.selectors import overview
from parallel_core.analysis.diagnosis import scaling
from parallel_core.analysis.diagnosis.case import Finding
from parallel_core.analysis.quantities import listed_text

MAX_COMPARED = 40
MAX_DRAWN = 12
MOST_COLUMNS = 6
"""The most runs that each have a column among what differs: of more, values are counted, and each run has a row."""
MAX_OFFERED = 30
"""The most runs among which to choose one to compare a single run with."""
MAX_LINKED = 16
"""The most ranks whose operations are linked; the tab has a choice of all."""


@require_GET
def compare_page(request: HttpRequest) -> HttpResponse:
    """?runs=1,2,3&baseline=1: at most MAX_COMPARED runs in the table; the page says how many are left out.

    Of more than MAX_DRAWN runs the time of each step is not drawn, and timelines only of the first MAX_DRAWN in the
    query.
    """
    runs, chosen, untrained, missing = _asked(request)
    absent = {"missing": missing, "untrained": listed_text(untrained) if untrained else ""}
    if not runs:
        return render(request, "studies/compare.html", {"view": None, **absent})
    live = live_context(request, runs)
    view, rows = live["view"], live["rows"]
    context = {
        **absent,
        **_apart(view, rows),
        "chosen": chosen,
        "under_way": bool(view.open),
        "gantt_src": _gantt_src(runs[:MAX_DRAWN]),
        "gantt_height": 56 * sum(run.devices for run in runs[:MAX_DRAWN]) + 80,
        "legend": LEGEND,
        "words": words_of(row.spec for row in rows),
        "swap": _swapped(request, runs),
        "fewer": _address(request, runs[:MAX_DRAWN]) if len(runs) > MAX_DRAWN else "",
        "ranks": range(min(MAX_LINKED, *(run.devices for run in runs))),
        "others": _others(runs[0]) if len(runs) == 1 else (),
    }
    return render(request, "studies/compare.html", live | context)


def _apart(view: Overview, rows: Sequence[Row]) -> dict[str, Any]:
    """The context of what differs between the runs, and whether they can be compared."""
    specs = [row.spec for row in rows]
    differing, same = differences(specs)
    places = [view.places.get(row.run.pk, NOWHERE) for row in rows]
    apart, wide = [*differing, *compare.placed_apart(places)], len(rows) > MOST_COLUMNS
    unlike = " ".join(filter(None, (compare.unlike(specs), compare.begun(rows))))
    return {
        "differing": apart,
        "noise": not unlike and all(place.known for place in places),
        "by_run": [(row, [one.values[i] for one in apart]) for i, row in enumerate(rows)] if wide else (),
        "same": same,
        "unlike": unlike,
    }


LIVE_PARTS = {
    "chips": "compare_chips",
    "verdict": "verdict_words",
    "scaling": "compare_scaling",
    "times": "compare_times",
    "tradeoff": "compare_tradeoff",
    "reached": "reached",
    "table": "table",
}
"""Id of an element that changes while the runs go on -> its template."""
IN_PARTS = ("waterfall", "speedup", "tradeoff")
"""The charts inside LIVE_PARTS, as it depends on the results so far which of them there are."""


def live_context(request: HttpRequest, runs: list[Run]) -> dict[str, Any]:
    """The context of LIVE_PARTS, and the charts; `runs` must not be empty."""
    view = overview(runs, runs[0])
    rows = _in_order(view, runs)
    same = compare.same_task([row.spec for row in rows])
    verdict, charts = compare.verdict(view, rows[1:]), _compare_charts(view, rows)
    titles = [*verdict, *(chart.title for chart in charts.values() if chart)]
    few = few_rows.few_of(request, view, titles)
    return {
        "view": view,
        "few": few,
        "numbers": columns.table_of(request, few, titles),
        "rows": rows,
        "drawn": min(len(rows), MAX_DRAWN),
        "verdict": verdict,
        "charts": few_rows.cut(charts, view, few),
        "scaling": None if view.open else _scaling(rows, view.places),
        "reached": compare.time_to_loss(view) if same else compare.Reaches(),
    }


@require_GET
@priced
def compare_changes(request: HttpRequest) -> JsonResponse:
    """The parts of the same comparison that differ from what the browser has. 404 if all its runs are gone."""
    runs = _asked(request).runs
    if not runs:
        raise Http404("none of these runs exist")
    live = live_context(request, runs)
    charts = {key: one for key, one in live["charts"].items() if one and key not in IN_PARTS}
    return answer(request, "studies/parts", LIVE_PARTS, live, charts)


class Asked(NamedTuple):
    """The first MAX_COMPARED training runs in the query, the baseline before them, of so many `chosen`; names of runs
    that do not train (they generate text, or time links), which cannot be compared; and ids of runs that do not
    exist."""

    runs: list[Run]
    chosen: int
    untrained: list[str]
    missing: list[int]


def _asked(request: HttpRequest) -> Asked:
    base = number(request.GET.get("baseline"))
    asked = numbers(request.GET.get("runs", "") or ",".join(request.GET.getlist("run")))[:MAX_TICKED]
    asked.sort(key=lambda pk: pk != base)
    named = {pk: (name, task) for pk, name, task in Run.objects.filter(pk__in=asked).values_list("pk", "name", "task")}
    trained = [pk for pk in asked if pk in named and not named[pk][1]]
    found = Run.objects.select_related("study").in_bulk(trained[:MAX_COMPARED])
    return Asked(
        [found[pk] for pk in trained[:MAX_COMPARED] if pk in found],
        len(trained),
        [named[pk][0] for pk in asked if pk in named and pk not in trained],
        [pk for pk in asked if pk not in named],
    )


def _others(run: Run) -> QuerySet[Run]:
    """The newest runs that `run` can be compared with, those of its study first, then those that succeeded."""
    nearest = Case(When(study=run.study_id or 0, then=0), When(state=State.SUCCEEDED, then=1), default=2)
    return Run.objects.filter(task={}).exclude(pk=run.pk).order_by(nearest, "-pk").only("name", "state")[:MAX_OFFERED]


def _in_order(view: Overview, runs: list[Run]) -> list[Row]:
    by_run = {row.run.pk: row for row in view.rows}
    return [by_run[run.pk] for run in runs]


def _scaling(rows: list[Row], places: Mapping[int, Place]) -> Finding | None:
    """For two runs, whether more devices gained less than they should: judged by times, so only if these are enough and
    undisturbed, and on the same machines or more of their kind."""
    if len(rows) != 2 or any(row.entry.disturbed or row.run.shares_hosts for row in rows):
        return None
    if any(row.entry.speed is not None and row.entry.speed.few for row in rows):
        return None
    first, second = (places.get(row.run.pk, NOWHERE) for row in rows)
    if second.elsewhere(first):
        return None
    return scaling.check(case_of(rows[1].run, earlier=rows[0].run))


def _compare_charts(view: Overview, rows: list[Row]) -> dict[str, Any]:
    made: dict[str, Any] = {**figures.of_overview(view)}
    like = view.like_for_like
    if len(like.rows) < len(rows) and not compare.held(rows[1:]):
        made |= {"speedup": None, "tradeoff": None}
    made |= {"loss": _losses(view, rows), **held_out.chart(view), **_swept(view)}
    if len(rows) <= MAX_DRAWN:
        made["steps"] = figures.steps(view)
    if view.side_by_side:
        made["tradeoff"] = None
    elif len(rows) == len(like.rows) == 2:
        made["waterfall"] = figures.difference(rows[0], rows[1])
    return made


def _swept(view: Overview) -> dict[str, Chart]:
    """What the values of a few fields reached, as on a study's page: the losses, where these runs train differently."""
    specs = {row.run.pk: row.spec for row in view.rows}
    return swept.of_overview("listed", replace(view, ranking=by_loss.ranking([row.run for row in view.rows], specs)))


def _losses(view: Overview, rows: list[Row]) -> Chart:
    chart = figures.losses(view)
    if compare.same_task([row.spec for row in rows]):
        return chart
    return replace(chart, subtitle=f"{chart.subtitle}; of other models or data, a lower loss is not a better one")


def _swapped(request: HttpRequest, runs: list[Run]) -> str:
    """The address of the same comparison with the second run as its baseline."""
    return _address(request, [runs[1], runs[0], *runs[2:]]) if len(runs) > 1 else ""


def _address(request: HttpRequest, runs: list[Run]) -> str:
    """The query of the comparison of `runs`, the first as the baseline, with the page's other parameters."""
    ids = [str(run.pk) for run in runs]
    query = request.GET.copy()
    query.pop("run", None)  # another form of `runs`
    query["runs"], query["baseline"] = ",".join(ids), ids[0]
    return f"?{query.urlencode(safe=',')}"


def _gantt_src(runs: list[Run]) -> str:
    return f"{reverse('studies:compare_gantt')}?{urlencode({'show': ','.join(str(run.pk) for run in runs)})}"


@require_GET
def compare_gantt(request: HttpRequest) -> JsonResponse:
    """The timelines of the runs in `?show=` on one axis, as JSON: two in their order in the query, more in the order of
    the page's other charts."""
    wanted = numbers(request.GET.get("show", ""))[:MAX_DRAWN]
    found = {run.pk: run for run in Run.objects.filter(pk__in=wanted)}
    runs = [found[pk] for pk in wanted if pk in found]
    view = overview(runs, runs[0] if runs else None)
    rows = view.rows if len(runs) > 2 else _in_order(view, runs)
    return JsonResponse(gantts.of_rows(rows, lane=True).as_dict())
