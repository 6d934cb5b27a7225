"""A traced step of a run replayed with a change, and with single changes; a pipeline of an imported trace likewise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import numpy as np
from pydantic import ValidationError

from dashboard.charts import gantt
from dashboard.charts.chart import Chart
from dashboard.charts.gantt_words import REPLAYED
from dashboard.runs import selectors
from dashboard.runs.models import ENDED, Run
from dashboard.runs.tracing import traces
from dashboard.runs.tracing.traces import Trace
from dashboard.runs.tracing.whatif_form import WhatIfForm, replayed
from dashboard.runs.tracing.whatif_words import gain_text, if_messages_stay, schedule_words, sentence, speedup
from parallel_core.analysis.quantities import ns_text, sentence_text, step_text
from parallel_core.analysis.waits import waited_if_whole
from parallel_core.layout import Layout
from parallel_core.observe.recorder import LANE_HOST
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.traits import TRAITS
from parallel_core.simulate.replay import FREE, Change, Replay, replay
from parallel_core.spec import RunSpec

TRIED = tuple(name for name, traits in TRAITS.items() if traits.tried_in_whatif)
"""Schedules tried in the list of single changes."""
NONE_TRACED = "No traced step has arrived yet."
ENDED_BEFORE = "This run ended before a traced step was complete."


@dataclass(frozen=True)
class Times:
    """Nanoseconds of a step: measured, replayed unchanged, and replayed with the change (None if impossible)."""

    measured: float
    unchanged: float
    predicted: float | None


@dataclass(frozen=True)
class Answer:
    """A step replayed with the change of `form`; `made` is None if the change makes no valid run."""

    form: WhatIfForm
    made: Replay | None
    times: Times
    late: float = 0.0
    """The step in ns if messages of other micro-batches take as long as before; 0 where it has the same ones."""

    @property
    def sentence(self) -> str:
        """What the change does to the step; '' if it makes no valid run."""
        if self.made is None:
            return ""
        said = sentence(self.form.change(), self.made, self.times.measured, self.form.spec)
        return f"{said}{if_messages_stay(self.late, self.made.step)}"


class CannotReplay(Exception):
    """Why no step can be replayed, in a sentence."""


def never_text(run: Run) -> str:
    """Why no step of a run is traced."""
    return ENDED_BEFORE if run.state in ENDED else NONE_TRACED


def absent_text(run: Run, step: int | None) -> str:
    """Why there is no trace of a step (None: the newest)."""
    nothing = never_text(run) if step is None else f"No span of {step_text(step)} was recorded."
    return selectors.dropped_text(run, step) or nothing


def replayable(run: Run, step: int | None) -> Trace:
    """The traced step `step` of the run (None: its typical one, as the newest may have been held up). Raises
    CannotReplay unless it is whole."""
    trace = (traces.typical(run) if step is None else None) or traces.trace(run, step)
    if trace is None:
        raise CannotReplay(absent_text(run, step))
    try:
        trace.measured  # noqa: B018 - costs are measured, and kept, here
    except ValueError as error:
        raise CannotReplay(sentence_text(str(error))) from error
    return trace


def answer(trace: Trace, given: Mapping[str, Any]) -> Answer:
    """The step replayed with the change in `given`, as data of the form."""
    form, measured = WhatIfForm(trace.trained, given), trace.measured
    made = replayed(form, lambda change: replay(trace.trained, measured, change))
    again = replay(trace.trained, measured, Change())
    times = Times(measured.step, again.step, made.step if made else None)
    if made is None or not form.change().micro_batches:
        return Answer(form, made, times)
    return Answer(form, made, times, replay(trace.trained, measured, replace(form.change(), same_messages=True)).step)


def ideas(trace: Trace) -> list[dict[str, Any]]:
    """Single changes to a step of a run."""
    measured, at = trace.measured, {"tab": "whatif", "step": trace.step}
    return single_changes(trace.trained, measured.step, lambda change: replay(trace.trained, measured, change), at)


def single_changes(
    spec: RunSpec, measured: float, how: Callable[[Change], Replay], at: Mapping[str, Any], layers: bool = True
) -> list[dict[str, Any]]:
    """Single changes, the one with the largest gain first: its words, its query (`at` with the change), the predicted
    step, the gain. `layers`: those of the spec are the run's own, as are its cuts."""
    found = []
    for words, asked, change in _candidates(spec, layers):
        try:
            made = how(change)
        except ValidationError:
            continue  # this run cannot have that change
        found.append((speedup(measured, made.step), words, asked, made))
    return [
        {
            "words": words,
            "address": urlencode({**at, **asked}),
            "step": ns_text(made.step, zeros=True),
            "ns": made.step,
            "asked": asked,
            "gain": gain_text(gain),
        }
        for gain, words, asked, made in sorted(found, key=lambda item: -item[0])
    ]


def _candidates(spec: RunSpec, layers: bool) -> list[tuple[str, dict[str, Any], Change]]:
    split = spec.parallel
    out: list[tuple[str, dict[str, Any], Change]] = []
    if split.world > 1:
        out.append(("Free communication", {"links": "free"}, Change(links=FREE)))
        out.append(("Links 4 times as fast", {"links": 4}, Change(links=4)))
    out.append(("A device twice as fast", {"device": 2}, Change(device=2)))
    if split.recompute != "none":
        out.append(("No recomputation", {"no_recompute": "on"}, Change(no_recompute=True)))
    if split.pp > 1:
        out.append(("Balanced stages", {"balanced": "on"}, Change(balanced=True)))
        for m in (split.micro_batches * 2, split.micro_batches * 4):
            out.append((f"{m} micro-batches", {"micro_batches": m}, Change(micro_batches=m)))
        if not split.early_gradients:
            out.append(("Early gradients", {"early_gradients": "on"}, Change(early_gradients=True)))
        for name in TRIED:
            if name != split.schedule:
                words = sentence_text(schedule_words(name, spec if layers else None))
                out.append((words, {"schedule": name}, Change(schedule=name)))
    return out


def chart(spans: Mapping[int, np.ndarray], layout: Layout, took: float, made: Replay, step: int) -> Chart:
    """The measured step (which took `took` ns) and the predicted one, for a step with a known layout."""
    predicted = {layout.tensor_group(q)[0]: rows for q, rows in made.spans.items()}
    return both_steps(spans, took, predicted, made.step, step_text(step), (layout, Layout.of(made.spec)))


def both_steps(
    measured: Mapping[int, np.ndarray],
    took: float,
    predicted: Mapping[int, np.ndarray],
    takes: float,
    source: str,
    layouts: Sequence[Layout] = (),
) -> Chart:
    """Both steps below each other, for the ranks in `predicted`; they took `took` and `takes` ns.

    With the `layouts` of both, waits are distinguished from communication; not where a tensor group is one row, because
    which of its ranks came last is not simulated.
    """
    mine = {rank: rows for rank, rows in measured.items() if rank in predicted}
    runs = [("measured", mine), ("predicted", {rank: _with_step(rows) for rank, rows in predicted.items()})]
    waits = [waited_if_whole(own, layout) for (_, own), layout in zip(runs, layouts, strict=False)]
    waits = waits if all(waits) else []
    title = f"{ns_text(took)} measured, {ns_text(takes)} predicted"
    source += ", measured and replayed"
    chart = gantt.chart(runs, title, source, key="whatif", waited=waits, what=REPLAYED, predicted=(1,))
    return replace(chart, subtitle=f"{chart.subtitle}; one row a pipeline rank")


def _with_step(rows: np.ndarray) -> np.ndarray:
    """The rows after a STEP row, so that idle time is drawn."""
    step = np.zeros(1, SPAN)
    step["kind"], step["lane"], step["micro_batch"] = Kind.STEP, LANE_HOST, -1
    step["end"] = rows["end"].max()
    return np.concatenate([step, rows])
