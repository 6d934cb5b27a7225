"""The charts of an overview, with their titles and sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np

from dashboard.charts import (
    breakdown,
    capacity,
    loss,
    many_lines,
    memory,
    speedup,
    tradeoff,
    waterfall,
)
from dashboard.charts.chart import Chart, Entry
from dashboard.charts.loss import Curve
from dashboard.runs.metrics import left_out
from dashboard.runs.samples import samples_shift
from dashboard.runs.selectors import series
from dashboard.studies.breakages import role_of
from dashboard.studies.comparability import same_work
from dashboard.studies.overview import by_loss
from dashboard.studies.overview.losses import Losses, Points
from dashboard.studies.overview.overviews import Overview
from dashboard.studies.overview.rows import Row
from parallel_core.analysis import sentences
from parallel_core.analysis.downsample import Means, thin
from parallel_core.analysis.quantities import most_percent_text, percent_text, plural_text
from parallel_core.observe.records import POINT
from parallel_core.schedule.traits import TRAITS, flushes

LOSS_BUCKETS = 200
FAINT_BUCKETS = 16
"""The least of a grey line: of many lines each has fewer, so that their page does not grow with all their points."""
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
    made = (speedups(view), breakdowns(view), memories(view), layers(view))
    return {chart.key: chart for chart in made}


def speedups(view: Overview) -> Chart:
    """A run of another kind of model than the baseline's keeps its row, as in the charts beside it, without a bar."""
    entries = [row.entry if row.alike or row.entry.status else replace(row.entry, status=OTHER) for row in view.rows]
    like = view.like_for_like
    title = view.no_race or sentences.speedup_title(like.results, view.base) if view.base else view.on_times
    return speedup.chart(entries, title, like.source)


def breakdowns(view: Overview) -> Chart:
    rows = [row for row in view.rows if row.entry.compared and row.entry.compared.breakdown]
    traced, typical = [row.entry for row in rows], all(map(is_typical, rows))
    which = "the traced step nearest its median" if typical else "one traced step against the median"
    source = f"measured, of each run {which}{nearness(traced)}"
    source += f", {len(traced)} of {plural_text(len(view.rows), 'run')}"
    return breakdown.chart(view.entries, sentences.breakdown_title(view.results), source)


def nearness(traced: Sequence[Entry]) -> str:
    """How far the traced steps are from the medians that the speedups are made of."""
    off = [
        abs(e.result.breakdown.total / 1e9 / e.traced_median - 1)
        for e in traced
        if e.result and e.result.breakdown and e.traced_median
    ]
    return f" ({most_percent_text(max(off))} off it)" if off else ""


def is_typical(row: Row) -> bool:
    """Whether a traced step near its median stands for the run."""
    return row.run.summary.get("breakdown_step") is not None


def memories(view: Overview) -> Chart:
    metered = sum(bool(result.memory) for result in view.results)
    source = f"measured on a metered step that is not timed, {metered} of {plural_text(len(view.rows), 'run')}"
    both = [(e.predicted, e.compared.memory_total) for e in view.entries if e.compared]
    off = [abs(predicted / measured - 1) for predicted, measured in both if predicted and measured]
    if off:
        source += f"; predictions off by {percent_text(max(off))} at most"
    return memory.chart(view.entries, sentences.memory_title(view.results, view.limit), source, view.limit)


def layers(view: Overview) -> Chart:
    """The title is of the baseline's kind of model: layers of another are no choice instead of its own."""
    title = capacity.title(view.like_for_like.entries, view.room)
    made = capacity.chart(view.entries, view.room)
    return replace(made, title=title, source=made.source + "; own cuts are replaced by balanced ones" * view.own_cuts)


def losses(view: Overview) -> Chart:
    """The loss of every run; parity is told in a sentence because curves would not show it."""
    read = view.losses
    rows = [row for row in view.rows if row.run.pk in read.held]
    buckets = _buckets(rows)
    curves = [_loss_curve(row, read, read.of(row.run), buckets=buckets[row.run.pk]) for row in rows]
    longest = max(loss.drawn(curves), key=lambda curve: curve.total, default=None)
    title = "0 losses have arrived."
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
        in_table=row.entry.marked_in_table,
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
    title = view.on_times if view.results else "0 steps have been timed."
    source, top = f"measured{left_out(row.run for row in view.rows)}", max(tops, default=None)
    return loss.chart(curves, title, source, key="steps", unit="ms a step", top=top)


def difference(a: Row, b: Row) -> Chart | None:
    """The waterfall from a to b; None unless both were traced and their steps train as many samples."""
    first = a.entry.compared.breakdown if a.entry.compared else None
    second = b.entry.compared.breakdown if b.entry.compared else None
    if first is None or second is None or not same_work(a.spec, b.spec):
        return None
    return waterfall.chart(
        first, second, (a.entry.label, b.entry.label), "measured, of both runs the traced step nearest the median"
    )
