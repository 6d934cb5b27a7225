"""Views of one run: its page (header and verdict, first screen, tabs), its live fragments, its data as JSON and CSV."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from dashboard.accounts.guards import token_may_read
from dashboard.accounts.roles import may_change, may_submit
from dashboard.charts.theme import LEGEND
from dashboard.charts.timeline import Lit, lit_of, window_of
from dashboard.live.changes import priced
from dashboard.one_look import one_look
from dashboard.runs import linking, resuming, selectors, series_files
from dashboard.runs.damaged import damaged
from dashboard.runs.findings import findings
from dashboard.runs.generation import generated_text, generating, text_times
from dashboard.runs.models import ENDED, Run, State
from dashboard.runs.origin import foretold, origin_of
from dashboard.runs.page import charts, metric_charts
from dashboard.runs.page.starting import age_text, placed
from dashboard.runs.page.tabs import OF_TEXT, TABS, tab_context
from dashboard.runs.page.tiles import tiles
from dashboard.runs.page.verdict import cause_of, verdict
from dashboard.runs.run_files import file_word
from dashboard.runs.states import beginning
from dashboard.runs.texts import corpus_names
from dashboard.runs.tracing import next_trace
from dashboard.runs.waiting import queueing
from dashboard.schedules.glossary import words_of
from parallel_core.outline import outline_of
from parallel_core.spec import RunSpec


@require_safe
@one_look()
def page(request: HttpRequest, pk: int) -> HttpResponse:
    """The whole page. `?tab=` selects the tab, `?step=` the traced step, `?rank=` the rank whose log is shown."""
    run = _run(pk)
    if run.task:
        context = {**_head(request, run), **_made(run), **_tab(request, run, None)}
        return render(request, "runs/generated.html", context)
    step = _number(request, "step")
    context = {**_head(request, run), **_first_screen(run, step, lit_of(request.GET)), **_tab(request, run, step)}
    return render(request, "runs/page.html", context)


@token_may_read
@require_safe
@priced
@one_look()
def fragment(request: HttpRequest, pk: int, name: str) -> HttpResponseBase:
    """One part of the page, for live updates: `head`, `tiles`, `steps`, `findings`, `tab`, or `text` of a run that does
    not train. `series-csv` is a download. 404 for any other name.
    """
    run = _run(pk)
    if name == "head":
        return render(request, "runs/page_head.html", _head(request, run))
    if name == "tiles":
        return render(request, "runs/page_tiles.html", {"run": run, "tiles": tiles(run)})
    if name == "text" and run.task:
        made = _made(run)
        return render(request, made["part"], {"run": run, **made})
    if name == "steps":
        return render(request, "runs/page_steps.html", _steps(run, _number(request, "step")))
    if name == "findings":
        return render(request, "runs/page_findings.html", {"run": run, "findings": findings(run)})
    if name == "tab":
        return render(request, "runs/page_tab.html", _alone(request, run))
    if name == "series-csv":
        return series_files.as_csv(run)
    raise Http404(f"a run's page has no part '{name}'")


@token_may_read
@require_safe
@priced
@one_look()
def data(request: HttpRequest, pk: int, name: str) -> HttpResponseBase:
    """JSON of `series` (all series, all points) or of one of DATA; 404 for any other name."""
    if name == "series":
        return series_files.as_json(_run(pk))
    if name not in DATA:
        raise Http404(f"a run has no data '{name}'")
    return JsonResponse(DATA[name](request, _run(pk)))


def _run(pk: int) -> Run:
    return get_object_or_404(Run.objects.select_related("owner", "study"), pk=pk)


def _made(run: Run) -> dict[str, Any]:
    """The results so far of a run that does not train (timed links or generated text), and their template."""
    if run.between:
        return {"part": "runs/timed_links.html", "found": linking.table_of(run), "rows": linking.listed(run)}
    figures = [*generated_text.figures(run), text_times.figure(run)]
    found = {"texts": generated_text.texts(run), "figures": figures, "task": run.task, "chart": text_times.chart(run)}
    return {"part": "runs/generated_text.html", **found}


def _trains(run: Run) -> str:
    """Model, batch, precision and the file or the uploaded text it trains on; only the model if the run generates text,
    '' if it times links."""
    spec = RunSpec.stored(run.spec)
    title = outline_of(spec.model).title
    if run.task:
        return title if run.generates else ""
    corpus, file = spec.train.corpus, file_word(run.spec)
    read = f", {file} {corpus.partition(':')[2]}" if file else ""
    if corpus.startswith(corpus_names.BLOB):
        read = f", text {corpus_names.names_of([corpus])[corpus]}"
    return f"{title}, batch {spec.train.global_batch}, {spec.train.precision}{read}"


def _head(request: HttpRequest, run: Run) -> dict[str, Any]:
    attempt = selectors.attempt_of(run)
    mine = may_change(request.user, run)
    return {
        "run": run,
        "attempt": attempt,
        "verdict": verdict(run),
        "trains": _trains(run),
        "cause": cause_of(run),
        "placed": placed(attempt) if attempt else "",
        "weights": generating.weights_of(run),
        "beginning": beginning(attempt) if attempt else "",
        "origin": origin_of(run),
        "foretold": foretold(run),
        "checkpoints": resuming.sound(run),
        "damaged": damaged(run).values(),
        "may_generate": may_submit(request.user) and generating.able(run),
        "age": age_text(run),
        "ended": run.state in ENDED,
        "settled": run.at_rest,
        "may_cancel": run.state not in ENDED and run.cancel_requested_at is None and mine,
        "may_change": mine,
        "may_queue": queueing.changeable(run) and not queueing.refusal(request.user, run),
        "may_put_first": queueing.changeable(run) and queueing.may_put_first(request.user, run),
        "next_trace": next_trace.status(run),
        "traceable": next_trace.choices(run),
        "may_submit": may_submit(request.user),
        "failed": run.state in (State.FAILED, State.LOST),
    }


def _steps(run: Run, step: int | None) -> dict[str, Any]:
    """Which step is shown, None for the newest, and which others can be chosen."""
    choice = selectors.step_choice(run, step)
    shown = None if step is None else choice.shown
    return {"choice": choice, "step": shown, "heading": charts.heading(run, shown)}


def _first_screen(run: Run, step: int | None, lit: Lit | None) -> dict[str, Any]:
    steps = _steps(run, step)
    shown = steps["step"]
    return {
        **steps,
        "tiles": tiles(run),
        "gantt": charts.timeline(run, shown, lit=lit) or charts.no_timeline(run, shown),
        "findings": findings(run, wait=False),
        "legend": LEGEND,
        "words": words_of([RunSpec.stored(run.spec)]),
    }


def _tab(request: HttpRequest, run: Run, step: int | None) -> dict[str, Any]:
    asked = request.GET.get("tab", "")
    tabs = OF_TEXT if run.task else TABS
    tab = asked if asked in tabs else next(iter(tabs))
    of_tab = tab_context(tab, run, _number(request, "rank") or 0, step, request.GET)
    return {"tabs": tabs, "tab": tab, "tab_title": tabs.get(asked, ""), **of_tab}


def _alone(request: HttpRequest, run: Run) -> dict[str, Any]:
    """The context of the tab without the page around it."""
    return {"run": run, "may_submit": may_submit(request.user), **_tab(request, run, _number(request, "step"))}


def _gantt(request: HttpRequest, run: Run) -> dict[str, Any]:
    """The timeline of `step`; with `from` and `to` (ms from its start), only of that window."""
    step, asked = _number(request, "step"), (window_of(request.GET), lit_of(request.GET))
    return (charts.timeline(run, step, *asked) or charts.no_timeline(run, step)).as_dict()


def _metrics(request: HttpRequest, run: Run) -> dict[str, Any]:
    return {"charts": {chart.key: chart.as_dict() for chart in metric_charts.metrics(run)}}


def _points(request: HttpRequest, run: Run) -> dict[str, Any]:
    """The points after step `since` (-1 or absent: all), each series thinned to a chart's width. A parameter with the
    key of a line gives that line's own step. When `begins` of a series has changed, earlier points were replaced,
    too."""
    asked = {key: since for key in request.GET if (since := _number(request, key, least=-1)) is not None}
    begins = metric_charts.beginnings(run)  # before the points, as in `metric_charts.metrics`
    return {"begins": begins, "series": metric_charts.points_since(run, asked.get("since", -1), asked)}


def _log(request: HttpRequest, run: Run) -> dict[str, Any]:
    """The log of `rank` from byte `start` on, at most `limit` bytes or 64 KiB; `total` = its bytes, `attempt` = whose
    log it is."""
    rank, start = (_number(request, name) or 0 for name in ("rank", "start"))
    most = selectors.LOG_PART_BYTES
    return asdict(selectors.log(run, rank, start, min(most, _number(request, "limit", least=1) or most)))


DATA: dict[str, Callable[[HttpRequest, Run], dict[str, Any]]] = {
    "gantt": _gantt,
    "metrics": _metrics,
    "points": _points,
    "log": _log,
    "spec": lambda request, run: run.spec,
}


def _number(request: HttpRequest, key: str, least: int = 0) -> int | None:
    """An integer of the query, from `least` to 2**31 - 1; None if it is absent or anything else."""
    try:
        value = int(request.GET.get(key, ""))
    except ValueError:
        return None
    return value if least <= value < 2**31 else None
