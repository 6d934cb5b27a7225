"""The page of a fit study, and its numbers as JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from dashboard.accounts.roles import may_change
from dashboard.charts import fit as fit_chart
from dashboard.charts.chart import Chart, Entry
from dashboard.charts.fit import AT_LIMIT
from dashboard.csv_cells import no_formula
from dashboard.runs.cancelling import any_left
from dashboard.runs.models import Run
from dashboard.runs.places import Place
from dashboard.studies import reruns
from dashboard.studies.fitting.fit import LayerSearch, accuracy, hunts, sentences, single_of
from dashboard.studies.models import Study
from dashboard.studies.new.kinds import clone_address
from dashboard.studies.overview.entries import shared_room
from dashboard.studies.selectors import held_equal
from parallel_core.plan.largest import MARGIN
from parallel_core.plan.memory import counted, worst_stage
from parallel_core.spec import RunSpec

COLUMNS = (
    *("strategy", "devices", "limit_bytes", "predicted_layers", "measured_layers", "difference"),
    *("peak_bytes", "predicted_peak_bytes", "refused_layers", "refused_because", "runs", "state"),
)


@dataclass(frozen=True)
class Line:
    """A search as a row of the page. `times` = its layers over those of the single device."""

    hunt: LayerSearch
    times: float | None
    predicted_peak: int | None
    """Predicted bytes for the run on which `hunt.peak` was measured; None without one, or if it takes too long to
    count."""


LIVE_PARTS = {"verdict": "verdict_words", "again": "again", "fit-table": "fit_table"}
"""Id of an element that changes while the searches go on -> its template."""


def page(request: HttpRequest, study: Study) -> HttpResponse:
    """The answer in a sentence, predicted against measured layers, and every run that was tried."""
    runs = list(study.runs.all())
    live = live_context(request, study, runs)
    equal = _equal([line.hunt for line in live["lines"]], max((run.devices for run in runs), default=0))
    context = {"runs": runs, "equal": equal, "clone": clone_address(study)}
    return render(request, "studies/fit.html", live | context)


def live_context(request: HttpRequest, study: Study, runs: Sequence[Run]) -> dict[str, Any]:
    """The context of LIVE_PARTS, and the chart `fit`."""
    found, limit = hunts(runs), _limit(runs)
    lines = [_line(found, hunt) for hunt in found]
    mine = may_change(request.user, study)
    again = reruns.candidates(study, runs) if mine else []
    return {
        "study": study,
        "may_change": mine,
        "again": reruns.offer(again),
        "unfinished": reruns.unfinished(again),
        "again_note": "with as many layers; its search then goes on",
        "cancellable": any_left(runs, request.user),
        "limit": limit,
        "verdict": sentences(found, limit),
        "lines": lines,
        "margin": f"{MARGIN:.1%}".replace("%", " %"),
        "over_single": any(line.times for line in lines),
        "charts": {"fit": _chart(found, limit)},
    }


def _equal(found: Sequence[LayerSearch], devices: int) -> str:
    """What all searches have in common; the number of layers, which they search for, is N."""
    alike = [hunt.spec.model_copy(update={"model": hunt.spec.model.model_copy(update={"layers": 1})}) for hunt in found]
    return held_equal(alike, devices).replace(" 1 x ", " N x ", 1)


def verdict(runs: Sequence[Run], _: Mapping[int, Place]) -> list[str]:
    """The first sentence of the page."""
    return sentences(hunts(runs), _cap(runs))[:1]


def rows(study: Study) -> Iterator[Sequence[Any]]:
    """Rows of the CSV: the names of the columns, then one row a search; unknown values are empty."""
    runs = list(study.runs.all())
    found, limit = hunts(runs), _limit(runs)
    yield COLUMNS
    for line in [_line(found, hunt) for hunt in found]:
        hunt = line.hunt
        state = "stopped" if hunt.stopped else "bounded" if hunt.bounded else "found" if hunt.over else "searching"
        refused = (hunt.search.refused, no_formula(hunt.refused.detail)) if hunt.refused else (None, None)
        known = (limit, hunt.predicted, hunt.largest, hunt.off, hunt.peak, line.predicted_peak, *refused)
        yield [no_formula(hunt.label), hunt.spec.parallel.world, *_blank(known), len(hunt.runs), state]


def _blank(values: Iterable[Any]) -> Iterator[Any]:
    return ("" if value is None else value for value in values)


def _chart(found: Sequence[LayerSearch], limit: int | None) -> Chart:
    runs = sum(len(hunt.search.tried) for hunt in found)
    return fit_chart.chart([_entry(hunt) for hunt in found], accuracy(found), runs, limit)


def _entry(hunt: LayerSearch) -> Entry:
    known = hunt.search.largest
    status = "not found" if hunt.stopped else AT_LIMIT if hunt.bounded else "" if hunt.over else "still searching"
    return Entry(hunt.label, largest=hunt.predicted, layers=known or 0, done=known is not None, status=status)


def _line(found: Sequence[LayerSearch], hunt: LayerSearch) -> Line:
    single = single_of(found, hunt)
    known = single and not (hunt.bounded or single.bounded)
    times = hunt.largest / single.largest if known and single and hunt.largest and single.largest else None
    best = RunSpec.stored(hunt.best.spec) if hunt.best else None
    return Line(hunt, times, worst_stage(best).total if best and counted(best) else None)


def _limit(runs: Sequence[Run]) -> int | None:
    room = shared_room(runs, {run.pk: RunSpec.stored(run.spec) for run in runs})
    return room.whole if room else None


def _cap(runs: Sequence[Run]) -> int | None:
    """The smallest cap in the specs of the runs; None if they have none."""
    return min((cap for run in runs if (cap := run.spec["trace"]["memory_cap"])), default=None)
