"""Charts of a run's page: the newest traced step with the memory curve below, and memory by category."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from django.urls import reverse

from dashboard.charts import gantt, theme
from dashboard.charts.chart import Chart
from dashboard.charts.gantt_bars import length
from dashboard.charts.heatmap import Window
from dashboard.charts.timeline import Lit, Step, kept
from dashboard.once import once
from dashboard.runs import selectors
from dashboard.runs.findings import findings
from dashboard.runs.models import ENDED, MemoryRecord, Run
from dashboard.runs.waiting.spreading import hosts_of
from parallel_core.analysis.names import CATEGORY_NAMES
from parallel_core.analysis.quantities import bytes_text, ns_text, percent_text, seconds_text, step_text
from parallel_core.layout import Layout
from parallel_core.observe.observed_steps import first_traced
from parallel_core.observe.records import CATEGORIES, MEMORY
from parallel_core.spec import RunSpec

MIB = 1 << 20
KEPT_S = 3600
MEMORY_PX = 96
ODD = 0.25
"""From this relative difference on, a step's title names the median beside its own time."""


def timeline(run: Run, step: int | None = None, window: Window | None = None, lit: Lit | None = None) -> Chart | None:
    """Gantt chart of one traced step (None = the newest complete one), with the worst rank's memory on the same axis.

    More than MAX_BARS spans in view make a heatmap; zooming requests its `window` again. `lit` is outlined.
    """
    shown = selectors.newest_traced_step(run) if step is None else step
    if shown is None or not (found := _step(run, shown)).total:
        return None
    source = f"measured, {_which(run, step, shown)}{_part(run, shown)}{_tied(run, shown)}"
    made = found.chart(_finding(run, shown, found), source, window, lit)
    if not found.long:
        return _with_memory(run, made)
    query = (f"?step={step}" if step is not None else "?") + (f"&lit={lit.query}" if lit else "")
    made.figure["layout"]["meta"]["window"] = reverse("runs:data", args=(run.pk, "gantt")) + query
    return made


def _step(run: Run, step: int) -> Step:
    """The step with the spans that have arrived."""

    def read() -> Step:
        attempt = selectors.attempt_of(run)
        return Step(selectors.spans(run, step), Layout.of(RunSpec.stored(run.spec)), hosts_of(attempt))

    return kept(("run", selectors.arrived(run, step)), read)


def _with_memory(run: Run, made: Chart) -> Chart:
    """The chart with the memory curve of the worst rank below it, if one was metered."""
    worst = selectors.worst_memory(run)
    # not `worst.curve`, which raises where the run has been deleted since and the controller tidies up
    curve = worst and MemoryRecord.objects.filter(pk=worst.pk).values_list("curve", flat=True).first()
    if worst is None or not curve:
        return made
    worst.curve = curve
    _add_memory(made.figure, worst)
    metered = f"memory of rank {worst.rank} in metered {step_text(worst.step)}"
    said = f"; curve: {metered}, MiB, stretched to this one"
    return replace(made, subtitle=made.subtitle + said)


def heading(run: Run, step: int | None) -> str:
    """What the step of `timeline` is called."""
    if step is not None:
        return f"traced {step_text(step)}"
    shown = selectors.newest_traced_step(run)
    return "newest traced step" if shown is None else selectors.newest_words(run, shown)


def _which(run: Run, step: int | None, shown: int) -> str:
    return f"the {selectors.newest_words(run, shown)}" if step is None else step_text(step)


def _part(run: Run, step: int) -> str:
    """How many of its spans are drawn, if not all were kept."""
    return f", {said}" if (said := selectors.kept_text(run, step)) else ""


def _tied(run: Run, step: int) -> str:
    """How closely the clocks of the run's hosts were compared, if there are several."""
    within = selectors.clock_within(run, step)
    return "" if within is None else f"; clocks of the hosts compared to within {ns_text(within)}"


def _finding(run: Run, step: int, found: Step) -> str:
    """What the step consists of, in a sentence, cached for longer than the step itself; with the rank that is a
    straggler, and of a step that is far off the run's median, that too, since it does not stand for the run."""
    said = once(f"finding-of-step:{selectors.arrived(run, step)}", lambda: _found(found, step), KEPT_S)
    slow = [one.finding.rank for one in findings(run, wait=False).cards if one.finding.rule == "straggler"]
    parts = [f"rank {rank} is a straggler" for rank in slow]
    median = (run.summary.get("timed") or {}).get("median")
    if median and abs(length(found.spans) / 1e9 / median - 1) > ODD:
        parts.append(f"the median step takes {seconds_text(median)}")
    return f"{'; '.join([said.removesuffix('.'), *parts])}." if parts else said


def _found(found: Step, number: int) -> str:
    try:
        return found.finding(number=number)
    except (ValueError, KeyError, IndexError):
        return "One traced step"  # the spans of some ranks have not arrived


def _add_memory(figure: dict[str, Any], record: MemoryRecord) -> None:
    """Adds the curve of a metered step below the Gantt chart, stretched to its length, as metering slows a step."""
    curve = np.frombuffer(bytes(record.curve), MEMORY)
    t = curve["t"] - curve["t"][0]
    end = float(figure["layout"]["xaxis"]["range"][1]) / 1.005
    x = t / t[-1] * end if len(t) > 1 and t[-1] else np.zeros(len(t))
    gantt.below(figure, MEMORY_PX, "MiB")
    for category in CATEGORIES:
        figure["data"].append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": CATEGORY_NAMES[category],
                "stackgroup": "memory",
                "yaxis": "y2",
                "x": np.round(x, 3).tolist(),
                "y": np.round(curve[category] / MIB, 3).tolist(),
                "line": {"width": 0, "shape": "hv"},
                "fillcolor": theme.var(f"memory-{category}"),
                "hovertemplate": f"{CATEGORY_NAMES[category]}: %{{y:.1f}} MiB<extra></extra>",
            }
        )


def no_timeline(run: Run, step: int | None = None) -> Chart:
    """The empty chart until the first traced step has arrived, which says what it will show and when; and the one of a
    step of which no span was kept."""
    made, dropped = gantt.figure({}) | {"data": []}, selectors.dropped_text(run, step)
    made["layout"]["meta"] = {**made["layout"]["meta"], "empty": dropped or _expected(run)}
    title = "No step was traced" if run.state in ENDED else "No step has been traced yet"
    if dropped:
        title = "The spans of this step were not kept"
    return Chart("gantt", title, "One traced step, a row for each rank", "", made)


def _expected(run: Run) -> str:
    first = first_traced(RunSpec.stored(run.spec))
    if run.state in ENDED:
        return "This run ended before a traced step was complete."
    if first is None:
        return "This run is too short: none of its steps is traced."
    # Without the current step: this text is not updated until the traced step has arrived.
    what = "forward, backward, communication and idle time of each rank"
    return f"Here you will see {what}, once {step_text(first)} is done."


def memory_rows(run: Run, limit: int | None) -> list[dict[str, Any]]:
    """One row a rank: peak by category with its share of the largest peak, and the peak as a share of the limit."""
    records = selectors.memory(run)
    most = max((record.peak_total for record in records.values()), default=0) or 1
    return [
        {
            "rank": rank,
            "step": record.step,
            "peak": bytes_text(record.peak_total),
            "parts": [
                (category, CATEGORY_NAMES[category], bytes_text(size), 100 * size / most)
                for category in CATEGORIES
                for size in [record.peak.get(category, 0)]
            ],
            "rss": bytes_text(record.rss_delta),
            "share": percent_text(record.peak_total / limit) if limit else "",
        }
        for rank, record in sorted(records.items())
    ]
