"""The page of a study of text generation, and its numbers as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from dashboard.accounts.roles import may_change
from dashboard.charts import generation as charts
from dashboard.charts import generation_parts
from dashboard.charts.chart import Chart
from dashboard.csv_cells import no_formula
from dashboard.fleet.words import WORDS
from dashboard.runs.cancelling import any_left
from dashboard.runs.models import Run
from dashboard.runs.places import Place
from dashboard.runs.standing import standing
from dashboard.studies import reruns
from dashboard.studies.generating.generation import Generations, Row, of_runs
from dashboard.studies.generating.generation_words import differences, grown, headlines, sentences
from dashboard.studies.models import Study
from dashboard.studies.new.kinds import clone_address
from dashboard.studies.overview.entries import waits_of
from parallel_core.analysis.quantities import plural_text, significant
from parallel_core.outline import outline_of
from parallel_core.spec import RunSpec

COLUMNS = (
    *("run", "split", "tensor_ranks", "stages", "replicas", "devices", "state"),
    *("prefill_s", "token_median_s", "token_p10_s", "token_p90_s", "timed_tokens", "tokens_per_s"),
    *("speedup", "speedup_low", "speedup_high"),
    *("communication_share", "cpu_others"),
    *("kv_bytes", "peak_bytes", "predicted_peak_bytes", "same_text", "differs_in_text", "differs_from_token"),
    *("overall_tokens_per_s", "text_s"),
)
LIVE_PARTS = {"verdict": "verdict_words", "again": "again", "generation-table": "generation_table"}
"""Id of an element that changes while runs go on -> its template."""


@dataclass(frozen=True)
class Line:
    """A run as a row of the page. `same` says whether its text is that of the reference, '' if that is not known;
    `wait` why it is still queued."""

    row: Row
    same: str
    wait: str


def page(request: HttpRequest, study: Study) -> HttpResponse:
    """The answer in a sentence, the times as bars, and every run with its memory and whether its text is the same."""
    runs = list(study.runs.select_related("resume_run"))
    context: dict[str, Any] = {"runs": runs, "clone": clone_address(study)}
    if runs:
        context |= {"equal": _equal(runs[0]), "source": runs[0].resume_run, "step": runs[0].resume_step}
    return render(request, "studies/generation.html", live_context(request, study, runs) | context)


def live_context(request: HttpRequest, study: Study, runs: Sequence[Run]) -> dict[str, Any]:
    """The context of LIVE_PARTS, and the charts."""
    view = of_runs(standing(runs))
    where, waits, mine = differences(view), waits_of(runs), may_change(request.user, study)
    return {
        "study": study,
        "view": view,
        "may_change": mine,
        "again": reruns.offer(runs) if mine else "",
        "unfinished": reruns.unfinished(runs) if mine else "",
        "cancellable": any_left(runs, request.user),
        "verdict": sentences(view, where),
        "lines": [Line(row, _same(view, row, where), waits.get(row.run.pk, "")) for row in view.rows],
        "charts": _charts(view),
    }


def verdict(runs: Sequence[Run], places: Mapping[int, Place]) -> list[str]:
    """The answer, with the warnings about all of it."""
    return headlines(of_runs(standing(runs), places))


def rows(study: Study) -> Iterator[Sequence[Any]]:
    """Rows of the CSV: the names of the columns, then one row a run; unknown values are empty."""
    yield COLUMNS
    view = of_runs(standing(study.runs.all()))
    where = differences(view)
    for row in view.rows:
        split, token, speed = row.split, row.token, row.speed
        same = row.digest == view.reference.digest if row.done and view.reference else None
        known = (
            *(row.prefill, *((token.median, token.p10, token.p90, token.n) if token else (None,) * 4), row.rate),
            *((speed.ratio, *speed.interval) if speed else (None,) * 3),
            *(row.parts.communication if row.parts else None, row.others),
            *(row.kv_bytes, row.peak, row.predicted, same, *where.get(row.run.pk, (None, None))),
            *(row.overall, row.text),
        )
        yield [
            *(row.run.pk, no_formula(row.label), *split, row.run.devices, row.run.state),
            *("" if value is None else value for value in known),
        ]


def _same(view: Generations, row: Row, where: Mapping[int, tuple[int, int]]) -> str:
    if not row.done or view.reference is None:
        return ""
    if row.run.pk == view.reference.run.pk:
        return "the reference" if len(view.splits) > 1 else ""
    if row.digest == view.reference.digest:
        return "yes"
    found = where.get(row.run.pk)
    return f"no, from token {found[1]} of text {found[0]} on" if found else "no"


def _charts(view: Generations) -> dict[str, Chart]:
    compared = view.compared
    found = [
        charts.Bar(
            row.label,
            row.prefill or 0.0,
            row.token,
            single=row.split.world == 1,
            parts=row.parts,
            whole=row.text,
            disturbed=row.disturbed,
        )
        for row in compared
        if row.token
    ]
    task = view.rows[0].run.task if view.rows else {}
    prompt = len(task.get("prompt", ())) * task.get("samples", 0)
    counts = sorted({bar.token.n for bar in found}) or [0]
    more = bool(view.open)
    of = f"{len(found)} of {plural_text(len({row.split for row in view.rows}), 'split')}"
    return {
        "tokens": charts.tokens(
            found, f"measured, {plural_text(counts[-1], 'token')} after the first, {of}", more=more
        ),
        "where": generation_parts.where(found, f"measured, spans of every token, {of}", more=more),
        "prefill": generation_parts.whole(found, prompt, f"measured once a run, {of}", more=more),
        "positions": generation_parts.positions(
            [generation_parts.Line(row.label, row.split, row.positions) for row in compared],
            grown(compared) or charts.nothing(more),
            f"measured on the slowest replica, {of}",
        ),
    }


def _equal(run: Run) -> str:
    """What all runs have in common, in words."""
    spec, task = RunSpec.stored(run.spec), run.task
    drawn = "the likeliest token each time"
    if task["temperature"]:
        among = f" from the {task['top_k']} likeliest" if task["top_k"] else ""
        drawn = f"drawn at temperature {significant(task['temperature'])}{among}, seed {task['seed']}"
    texts = f"{plural_text(task['samples'], 'text')} of {plural_text(task['new'], 'token')}"
    prompt = f"after a prompt of {len(task['prompt'])}"
    where = WORDS[spec.train.device]
    return f"{outline_of(spec.model).title}, {texts} {prompt}, {drawn}, {spec.train.precision}, {where}s"
