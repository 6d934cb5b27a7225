"""The charts of an overview, with their titles and sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np

from dashboard.charts import (
    breakdown,
    capacity,
    gantt,
    gantt_differences,
    loss,
    many_lines,
    memory,
    speedup,
    tradeoff,
    waterfall,
)
from dashboard.charts.chart import Chart, Entry
from dashboard.charts.gantt_bars import Spans
from dashboard.charts.gantt_differences import Lane
from dashboard.charts.loss import Curve
from dashboard.runs.metrics import left_out
from dashboard.runs.models import Run
from dashboard.runs.samples import samples_shift
from dashboard.runs.selectors import (
    kept_text,
    missing_text,
    newest_traced_step,
    newest_words,
    series,
    span_counts,
    spans,
)
from dashboard.studies import by_loss
from dashboard.studies.breakages import role_of
from dashboard.studies.comparability import same_work
from dashboard.studies.losses import Losses, Points
from dashboard.studies.overviews import Overview, Row
from parallel_core.analysis import sentences
from parallel_core.analysis.align import Side, align_sides, comparable
from parallel_core.analysis.downsample import Means, thin
from parallel_core.analysis.quantities import percent_text
from parallel_core.analysis.waits import step_start, waited_if_whole
from parallel_core.faults import trained
from parallel_core.layout import Layout
from parallel_core.observe.records import POINT
from parallel_core.schedule.traits import TRAITS, flushes

LOSS_BUCKETS = 200
FAINT_BUCKETS = 16
"""The least of a grey line: of many lines each has fewer, so that their page does not grow with all their points."""
OPEN_GANTTS = 4
OTHER = "another model"
"""What stands in the row of a run that has no speedup over the baseline for that reason."""
_STREAMS = (name for name in TRAITS if not flushes(name))
DASHES = dict(zip(_STREAMS, cycle(("dot", "dashdot", "longdash", "longdashdot")), strict=False))
"""Dash patterns of pipelines without a flush: their losses differ, and all pipelines have one colour."""

USUAL, ROOM = 95, 1.25
"""The first view of step times, or of losses, ends at ROOM times their USUAL-th percentile."""


def of_overview(view: Overview) -> dict[str, Chart]:
    """speedup, breakdown, memory, capacity and, of times that can be compared, tradeoff, by key; they need no query
    beyond the overview's."""
    made = by_rows(view)
    if not view.side_by_side:
        like = view.like_for_like  # the time of another kind of model is not held against the baseline's
        made["tradeoff"] = tradeoff.chart(like.entries, like.source)
    return made


def by_rows(view: Overview) -> dict[str, Chart]:
    """Those of them that have a row for each run."""
    made = (speedups(view), breakdowns(view), memories(view), capacity.chart(view.entries, view.room))
    return {chart.key: chart for chart in made}


def speedups(view: Overview) -> Chart:
    """A run of another kind of model than the baseline's keeps its row, as in the charts beside it, without a bar."""
    entries = [row.entry if row.alike or row.entry.status else replace(row.entry, status=OTHER) for row in view.rows]
    like = view.like_for_like
    title = view.no_race or sentences.speedup_title(like.results, view.base) if view.base else view.on_times
    return speedup.chart(entries, title, like.source)


def breakdowns(view: Overview) -> Chart:
    rows = [row for row in view.rows if row.entry.compared and row.entry.compared.breakdown]
    traced, typical = [row.entry for row in rows], all(map(_typical, rows))
    which = "the traced step nearest its median" if typical else "one traced step against the median"
    source = f"measured, of each run {which}{_nearness(traced)}"
    source += f", {len(traced)} of {len(view.rows)} runs"
    return breakdown.chart(view.entries, sentences.breakdown_title(view.results), source)


def _nearness(traced: Sequence[Entry]) -> str:
    """How far the traced steps are from the medians that the speedups are made of."""
    off = [
        abs(e.result.breakdown.total / 1e9 / e.traced_median - 1)
        for e in traced
        if e.result and e.result.breakdown and e.traced_median
    ]
    return f" (at most {percent_text(max(off))} off it)" if off else ""


def memories(view: Overview) -> Chart:
    metered = sum(bool(result.memory) for result in view.results)
    source = f"measured on a metered step that is not timed, {metered} of {len(view.rows)} runs"
    both = [(e.predicted, e.compared.memory_total) for e in view.entries if e.compared]
    off = [abs(predicted / measured - 1) for predicted, measured in both if predicted and measured]
    if off:
        source += f"; predictions off by {percent_text(max(off))} at most"
    return memory.chart(view.entries, sentences.memory_title(view.results, view.limit), source, view.limit)


def losses(view: Overview) -> Chart:
    """The loss of every run; parity is told in a sentence because curves would not show it."""
    read = view.losses
    rows = [row for row in view.rows if row.run.pk in read.held]
    buckets = _buckets(rows)
    curves = [_loss_curve(row, read, read.of(row.run), buckets=buckets[row.run.pk]) for row in rows]
    longest = max(loss.drawn(curves), key=lambda curve: curve.total, default=None)
    title = "0 losses have arrived so far."
    if view.lead and view.ranking and view.ranking.what == by_loss.FINAL:
        title = view.lead
    elif longest is not None:
        ends = float(longest.value[0]), float(longest.value[-1])
        title = sentences.loss_title(*ends, int(longest.step[-1]) + 1, longest.label)
    older = [
        _loss_curve(row, read, read.replaced[row.run.pk], float(read.of(row.run)["time"].min()))
        for row in view.rows
        if row.run.pk in read.replaced
    ]
    source = ", ".join(filter(None, ("measured", read.part))) + left_out(row.run for row in view.rows)
    return loss.chart(curves, title, source, replaced=older, top=usual_top(view, read), first=first_ones(view))


def first_ones(view: Overview) -> str:
    """What the first runs of the page are, in words."""
    return (
        f"with the lowest {view.ranking.what}" if view.ranking else "fastest" if view.by_time else "first in the table"
    )


def _buckets(rows: Sequence[Row]) -> dict[int, int]:
    """By run: into how many buckets its losses are thinned. Those of many runs, but for the first and the baseline,
    share the points that MAX_LINES would have."""
    if len(rows) <= loss.MAX_LINES:
        return dict.fromkeys((row.run.pk for row in rows), LOSS_BUCKETS)
    few = max(FAINT_BUCKETS, LOSS_BUCKETS * many_lines.LEADERS // len(rows))
    ahead = {row.run.pk for i, row in enumerate(rows) if i < many_lines.LEADERS or row.entry.baseline}
    return {row.run.pk: LOSS_BUCKETS if row.run.pk in ahead else few for row in rows}


def usual_top(view: Overview, read: Losses) -> float | None:
    """Where the first view of losses ends, so that a run that diverges does not press the others together: of the runs
    that are ranked by their loss, or of many, the median of what `steps` takes of each; None of a few unranked ones."""
    many = read.held if len(read.held) > loss.MAX_LINES else ()
    ranked = [read.held[pk]["value"] for pk in (view.ranking.values if view.ranking else many) if pk in read.held]
    tops = [float(np.percentile(finite, USUAL)) for own in ranked if len(finite := own[np.isfinite(own)])]
    return ROOM * float(np.median(tops)) if tops else None


def _loss_curve(
    row: Row, read: Losses, points: Points, origin: float | None = None, buckets: int = LOSS_BUCKETS
) -> Curve:
    return replace(curve(row, points, origin, buckets), total=read.total(points))


def curve(row: Row, points: Points, origin: float | None = None, buckets: int = LOSS_BUCKETS) -> Curve:
    """The run's curve; seconds count from `origin` (on the clock of the points), else from the first point. More than
    three times `buckets` points are thinned."""
    start = origin if origin is not None else float(points["time"][0]) if len(points) else 0.0
    thinned = thin(points["value"], buckets) if len(points) > 3 * buckets else None
    kept = points if thinned is None else points[thinned]
    return Curve(
        label=row.entry.marked,
        step=kept["step"],
        seconds=kept["time"] - start,
        value=kept["value"],
        total=len(points),
        samples_per_step=row.spec.train.global_batch,
        samples_shift=samples_shift(row.run),
        family=row.entry.family,
        dashed=row.entry.recompute,
        dash=DASHES.get(row.spec.parallel.schedule, ""),
        role=role_of(row.run),
        means=None if thinned is None else Means.of(points["value"], thinned),
        run=row.run.pk,
        baseline=row.entry.baseline,
    )


def steps(view: Overview) -> Chart:
    """Time of every step of each run, from the stored points. The first view shows the timed steps, because the first
    steps of a run are slow."""
    curves, tops = [], []
    for row in view.rows:
        points = series(row.run, "step_time", buckets=LOSS_BUCKETS, pauses=False).times(1e3)
        one = curve(row, np.empty(0, POINT))
        seconds = points.time - (points.time[0] if points.shown else 0.0)
        line = replace(one, step=points.step, seconds=seconds, value=points.value, means=points.means)
        curves.append(replace(line, total=points.total))
        timed = curves[-1].value[points.step >= row.spec.train.warmup_steps]
        tops += [ROOM * float(np.percentile(timed, USUAL))] if len(timed) else []
    title = view.on_times if view.results else "0 steps have been timed so far."
    source, top = f"measured{left_out(row.run for row in view.rows)}", max(tops, default=None)
    return loss.chart(curves, title, source, key="steps", unit="ms a step", top=top)


def gantts(rows: Sequence[Row], *, lane: bool = False) -> Chart:
    """Traced steps of the given rows on one axis; reads their spans. With `lane`, two of them have a lane between them
    of the operations in which they differ."""
    traced = [(row, step, spans(row.run, step)) for row in rows if (step := _shown_step(row)) is not None]
    drawn = [each for each in traced if each[2]]
    title = _nothing_drawn(len(traced))
    if drawn:
        row = max((row for row, _, _ in drawn), key=_bubble)
        parts = row.entry.result.breakdown if row.entry.result else None
        title = sentences.gantt_title(row.entry.marked, parts) if parts else f"{len(drawn)} traced steps on one axis."
    steps = ", ".join(sorted({str(row.run.summary["breakdown_step"]) for row, _, _ in drawn if _typical(row)}, key=int))
    near = _nearness([row.entry for row, _, _ in drawn if _typical(row)])
    which = (
        f"the traced step nearest each median{near}, step {steps}"
        if steps
        else f"the {_newest_words([(row.run, step) for row, step, _ in drawn])}"
    )
    source = f"measured, {which}, {len(drawn)} of {len(rows)} runs{_shortfalls(traced)}"
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
        return "0 of these runs have been traced so far."
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


def _typical(row: Row) -> bool:
    return row.run.summary.get("breakdown_step") is not None


def _shown_step(row: Row) -> int | None:
    """The traced step that stands for the run, else the newest; None if it has none."""
    typical: int | None = row.run.summary.get("breakdown_step")
    return newest_traced_step(row.run) if typical is None else typical


def _bubble(row: Row) -> float:
    parts = row.entry.compared.breakdown if row.entry.compared else None
    return parts.share("bubble") if parts else 0.0


def default_gantts(view: Overview, chosen: Sequence[int] = ()) -> list[Row]:
    """The rows whose timelines are shown: the `chosen` runs, else the fastest, the slowest, the baseline and further
    ones."""
    done = view.by_time
    if chosen:
        return [row for row in view.rows if row.run.pk in chosen]
    picks = [*done[:1], *done[-1:], *([view.baseline] if view.baseline in done else []), *done[1:]]
    unique = list({row.run.pk: row for row in picks if row}.values())[:OPEN_GANTTS]
    return [row for row in view.rows if row in unique]


def difference(a: Row, b: Row) -> Chart | None:
    """The waterfall from a to b; None unless both were traced and their steps train as many samples."""
    first = a.entry.compared.breakdown if a.entry.compared else None
    second = b.entry.compared.breakdown if b.entry.compared else None
    if first is None or second is None or not same_work(a.spec, b.spec):
        return None
    return waterfall.chart(
        first, second, (a.entry.label, b.entry.label), "measured, of both runs the traced step nearest the median"
    )
