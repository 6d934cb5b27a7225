"""The timelines of an overview's traced steps: which runs have one, and what their chart says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dashboard.charts import gantt, gantt_differences
from dashboard.charts.chart import Chart
from dashboard.charts.gantt_bars import Spans
from dashboard.charts.gantt_differences import Lane
from dashboard.runs.models import Run
from dashboard.runs.selectors import kept_text, missing_text, newest_traced_step, newest_words, span_counts, spans
from dashboard.studies.overview.figures import is_typical, nearness
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.overview.rows import Row
from parallel_core.analysis import sentences
from parallel_core.analysis.align import Side, align_sides, comparable
from parallel_core.analysis.quantities import count_text, listed_text, plural_text
from parallel_core.analysis.waits import step_start, waited_if_whole
from parallel_core.faults import trained
from parallel_core.layout import Layout

OPEN_GANTTS, MOST = 4, 12
"""Timelines that are shown where none is chosen, and at most."""


def of_rows(rows: Sequence[Row], *, lane: bool = False) -> Chart:
    """Traced steps of the given rows on one axis; reads their spans. With `lane`, two of them have a lane between them
    of the operations in which they differ."""
    traced = [(row, step, spans(row.run, step)) for row in rows if (step := _shown_step(row)) is not None]
    drawn = [each for each in traced if each[2]]
    title = _nothing_drawn(len(traced))
    if drawn:
        row = max((row for row, _, _ in drawn), key=_bubble)
        parts = row.entry.breakdown
        title = sentences.gantt_title(row.entry.marked, parts) if parts else f"{len(drawn)} traced steps on one axis."
    steps = sorted({int(row.run.summary["breakdown_step"]) for row, _, _ in drawn if is_typical(row)})
    numbers = listed_text([count_text(step) for step in steps])
    near = nearness([row.entry for row, _, _ in drawn if is_typical(row)])
    which = (
        f"the traced step nearest each median{near}, step{'s' * (len(steps) > 1)} {numbers}"
        if steps
        else f"the {_newest_words([(row.run, step) for row, step, _ in drawn])}"
    )
    source = f"measured, {which}, {len(drawn)} of {plural_text(len(rows), 'run')}{_shortfalls(traced)}"
    waits = [waited_if_whole(found, Layout.of(row.spec)) for row, _, found in drawn]
    chart = gantt.chart([(row.entry.marked, found) for row, _, found in drawn], title, source, waited=waits)
    return _with_lane(chart, drawn) if lane and len(drawn) == 2 else chart


def _shortfalls(traced: Sequence[tuple[Row, int, Spans]]) -> str:
    """How many spans are here of each run of whose step not all were kept, and why ranks are missing."""
    said = []
    for row, step, found in traced:
        missing = missing_text(row.run, step).removesuffix(".") if len(found) < row.run.devices else ""
        if parts := [part for part in (kept_text(row.run, step), missing) if part]:
            said.append(f"; {row.entry.marked}: {', '.join(parts)}")
    return "".join(said)


def _nothing_drawn(traced: int) -> str:
    """Why no step is drawn, of runs of which so many have traced steps."""
    if not traced:
        return "0 of these runs have been traced."
    return f"{traced} of these runs {'was' if traced == 1 else 'were'} traced, but the spans were not kept."


def _newest_words(drawn: Sequence[tuple[Run, int]]) -> str:
    """What the newest traced steps of all these runs may be called: the longest name is true of the others, too."""
    return max({newest_words(run, step) for run, step in drawn}, key=len, default="newest traced step")


def _with_lane(chart: Chart, drawn: Sequence[tuple[Row, int, Spans]]) -> Chart:
    """The chart of two runs with a lane of the operations of rank 0 in which they differ; `drawn`: each with the step
    that is drawn and its spans."""
    if not all(0 in found for _, _, found in drawn):
        return chart
    a, b = comparable(*(Side(trained(row.spec), 0, found[0]) for row, _, found in drawn))
    zeros = [step_start(found) for _, _, found in drawn]
    counts = [span_counts(row.run, step, 0) for row, step, _ in drawn]
    of = zip((a, b), align_sides(a, b).statuses, zeros, counts, strict=True)
    first, second = (Lane(0, side.ordered, statuses, zero, *kept) for side, statuses, zero, kept in of)
    said = gantt_differences.add(chart.figure, (first, second), len(drawn[0][2]))
    subtitle = f"{chart.subtitle}; {gantt_differences.IN_WORDS}"
    return replace(chart, subtitle=subtitle, source=f"{chart.source}; {said}")


def _shown_step(row: Row) -> int | None:
    """The traced step that stands for the run, else the newest; None if it has none."""
    typical: int | None = row.run.summary.get("breakdown_step")
    return newest_traced_step(row.run) if typical is None else typical


def _bubble(row: Row) -> float:
    parts = row.entry.compared.breakdown if row.entry.compared else None
    return parts.share("bubble") if parts else 0.0


def default_rows(view: Overview, chosen: Sequence[int] = ()) -> list[Row]:
    """The rows whose timelines are shown: the first MOST of the `chosen` runs, else the fastest, the slowest, the
    baseline and further ones."""
    done = view.by_time
    if chosen:
        return [row for row in view.rows if row.run.pk in chosen][:MOST]
    picks = [*done[:1], *done[-1:], *([view.baseline] if view.baseline in done else []), *done[1:]]
    unique = list({row.run.pk: row for row in picks if row}.values())[:OPEN_GANTTS]
    return [row for row in view.rows if row in unique]
