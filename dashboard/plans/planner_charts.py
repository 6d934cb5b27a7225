"""Charts of the Planner page, with their findings as titles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dashboard.charts import gantt
from dashboard.charts import plans as charts
from dashboard.charts.chart import Chart
from dashboard.charts.gantt_bars import in_seconds
from dashboard.charts.gantt_words import IN_SECONDS, MEASURED, PREDICTED
from dashboard.plans.planner_page import View
from dashboard.plans.setups import Setup
from parallel_core.analysis.quantities import count_text, ns_text, percent_text, seconds_text
from parallel_core.plan.cluster import memory, search, step
from parallel_core.plan.cluster.plan_timeline import drawn
from parallel_core.plan.cluster.plans import Plan, Plans
from parallel_core.plan.cluster.verdict import Judged
from parallel_core.schedule.traits import flushes

DRAWN_FITTING, DRAWN_LARGE = 400, 150
"""Plans drawn in the scatter besides the Pareto front: spaced evenly over those that fit and those that do not."""


def all_charts(made: View) -> dict[str, Chart]:
    out = {"plans": _scatter(made)}
    judged = made.judged
    if judged and judged.seconds:
        compute = judged.times["compute"] / judged.seconds
        title = f"{percent_text(compute)} of the step is forward and backward: {seconds_text(judged.times['compute'])}."
        out["step"] = charts.step(judged.times, judged.forward, title)
    if judged:
        state = "fits" if judged.fits or judged.peak <= judged.capacity else "does not fit"
        title = f"{judged.room} at the peak: the plan {state}."
        rows = [(instant, _at(judged, instant)) for instant in memory.INSTANTS]
        out["memory"] = charts.memory(rows, [judged.capacity] * len(rows), title)
    return out


def _at(judged: Judged, instant: str) -> dict[str, float]:
    """Bytes by part at an instant of the step: only parts that exist then."""
    parts: dict[str, float] = dict(judged.parts)
    gone = {"built": ("grads", "activations", "buffers"), "end of forward": ("buffers",)}
    gone["optimizer step"] = ("activations", "buffers")
    return {part: 0.0 if part in gone.get(instant, ()) else size for part, size in parts.items()}


def _scatter(made: View) -> Chart:
    found, cluster = made.found, made.setup.cluster
    front = search.pareto(found)
    fitting = (
        found.order[np.linspace(0, max(len(found.order) - 1, 0), DRAWN_FITTING).astype(int)] if found.timed else []
    )
    large = np.flatnonzero(~np.isnan(found.peak) & np.isnan(found.seconds))
    large = large[np.linspace(0, len(large) - 1, DRAWN_LARGE).astype(int)] if len(large) else large
    points = _points(made, front, np.unique(np.asarray(fitting, np.int64)), np.unique(large))
    plans = count_text(found.timed + found.too_large)
    fit, are = "fits" if found.timed == 1 else "fit", "is" if len(front) == 1 else "are"
    title = (
        f"{count_text(found.timed)} of {plans} plans {fit}; {len(front)} {are} beaten by none in both time and memory."
    )
    others = {point.label for point in points if not point.chosen}
    asked = " and the one asked about" * any(point.label not in others for point in points)
    shown = f"{len(others)} of {plans} plans{asked} drawn"
    return charts.scatter(points, cluster.capacity, title, shown)


def _points(made: View, front: list[int], fitting: Any, large: Any) -> list[charts.Point]:
    found, (job, cluster) = made.found, made.setup
    best = set(front)
    out = [
        charts.Point(found.label(i), float(found.seconds[i]), float(found.peak[i]), True, i in best)
        for i in sorted({*front, *fitting.tolist()})
    ]
    slowest = max((p.seconds for p in out), default=float("inf"))
    times = step.of(job, cluster, found.plans.take(large)).total if len(large) else np.zeros(0)
    for i, seconds in zip(large.tolist(), times.tolist(), strict=True):
        if seconds <= slowest:
            out.append(charts.Point(found.plans.row(i).label(), seconds, float(found.peak[i]), False, False))
    judged = made.judged
    if judged and judged.seconds:
        fits = judged.peak <= judged.capacity
        out.append(charts.Point(found.named(judged.plan), judged.seconds, judged.peak, fits, False, True))
    return out


def timeline(setup: Setup, plan: Plan) -> Chart:
    """The predicted step of one replica as a Gantt chart: the first ranks, and enough micro-batches to show the
    pattern."""
    made = drawn(setup.job, setup.cluster, plan)
    part = f"{made.micro_batches} of {made.of} micro-batches"
    title = f"{ns_text(made.idle)} idle on the busiest stage, from the first operation of any stage to the last."
    source = f"simulated, {len(made.spans)} of {made.ranks} stages, {part}; collectives are inside the operations"
    parts = step.of(*setup, Plans.of([plan])).parts(0)
    long = sum(parts.values()) >= charts.IN_SECONDS_S
    return gantt.chart(
        [("", in_seconds(made.spans) if long else made.spans)],
        title,
        f"{source}{_by_formula(parts, plan)}",
        what=PREDICTED,
        predicted=(0,),
        words=IN_SECONDS if long else MEASURED,
    )


def _by_formula(parts: Mapping[str, float], plan: Plan) -> str:
    """How much bubble and messages the parts of the step have, by formula, and why simulated idle time may be less."""
    if plan.pp == 1:
        return ""
    said = f"; in the parts of the step {seconds_text(parts['bubble'])} of bubble, by formula, and "
    said += f"{seconds_text(parts['messages'])} of messages"
    return said if flushes(plan.schedule) else f"{said}: there the pipeline stays full from step to step"
