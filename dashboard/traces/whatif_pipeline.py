"""What-if for a step of an imported trace.

If its ranks are the stages of a pipeline that can be recovered, all changes that a run offers; else those of
`traces.whatif`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.charts.chart import Chart
from dashboard.charts.timeline import Step
from dashboard.runs.tracing.whatif_form import WhatIfForm, replayed
from dashboard.runs.tracing.whatif_replay import Times, both_steps, single_changes
from dashboard.runs.tracing.whatif_words import check, sentence
from dashboard.traces import whatif as plain
from dashboard.traces import whatif_recorded as recorded
from dashboard.traces.models import Trace
from dashboard.traces.spans import device_of, groups, step_of
from dashboard.traces.whatif import DRAWN_RANKS, WhatIf
from parallel_core.analysis.meetings import Groups
from parallel_core.analysis.quantities import ns_text, plural_text, step_text
from parallel_core.schedule.ir import Schedule
from parallel_core.schedule.traits import CUSTOM, TRAITS
from parallel_core.simulate.imported import MOST_SPANS
from parallel_core.simulate.recovered import overtaken
from parallel_core.simulate.recovered_replay import MOST_OFF, Recovered
from parallel_core.simulate.replay import Change, Replay
from parallel_core.spec import DeviceKind
from parallel_core.traces.known_programs import like

_FOOT = (
    "Waiting is what stands between a rank's operations for as long as the other end had not sent. Other schedules and "
    "micro-batches take the median cost of each stage's operations, and stages to be even inside."
)


def of_trace(trace: Trace, step: int, given: Mapping[str, Any]) -> WhatIf:
    """The what-if of a step: with the spec exported with it, or as far as a pipeline can be recovered."""
    found = step_of(trace, step)
    if trace.trained is not None:
        return recorded.whatif(found, step, given, trace.trained)
    return whatif(found, step, given, device_of(trace), trace.counted(step), groups(trace, step))


def whatif(
    found: Step,
    step: int,
    given: Mapping[str, Any],
    device: DeviceKind,
    by_messages: bool = False,
    named: Groups | None = None,
) -> WhatIf:
    """The what-if of a step without a spec.

    `given` = the page's query, `device` = the kind of device it ran on, `by_messages`: stages and micro-batches were
    inferred from messages, not named; `named` = the process groups of its collectives.
    """
    try:
        pipeline = Recovered.of(found.spans, device) if found.total <= MOST_SPANS else None
    except ValueError as error:
        return WhatIf(f"No what-if of this step: {error}.")
    if pipeline is None:
        return plain.whatif(found, step, given, named)
    return _of_pipeline(pipeline, step, given, by_messages)


def _of_pipeline(found: Recovered, step: int, given: Mapping[str, Any], by_messages: bool) -> WhatIf:
    form = WhatIfForm(found.spec, given)
    made = replayed(form, found.replay)
    ideas = single_changes(found.spec, found.step, found.replay, {"step": step}, layers=False)
    again = found.replay(Change()).step
    return WhatIf(
        form=form,
        known=known(found, by_messages),
        sentence=sentence(form.change(), made, found.step) if made else "",
        check=check(again, found.step),
        foot=_FOOT,
        ideas=ideas,
        times=Times(found.step, again, made.step if made else None),
        chart=_chart(found, made, step) if made else None,
    )


def known(found: Recovered, by_messages: bool = False) -> str:
    """What was recovered, and how certain it is."""
    pipeline, made = found.pipeline, found.pipeline.schedule
    name = TRAITS[made.name].label if made.name != CUSTOM else _order(made)
    size = f"{plural_text(made.stages, 'stage')}, {plural_text(made.micro_batches, 'micro-batch')}"
    beside = [(pipeline.replicas, "replica"), (pipeline.width, "tensor rank")]
    size += "".join(f", {plural_text(count, word)}" for count, word in beside if count > 1)
    why = "annotations name every operation" if pipeline.stages_named else "stages by the order in which ranks begin"
    if by_messages:
        why = "messages, and the order of forwards and backwards, tell stages and micro-batches"
    sure = pipeline.stages_named and not by_messages
    out = [f"{'Certain' if sure else 'Likely'}: {name}, {size}; {why}."]
    if (skew := overtaken(pipeline)) > 0:
        out.append(f"Clocks differ by {ns_text(skew)} at least: a stage began before the one ahead of it had ended.")
    if found.off > MOST_OFF:
        out.append("The unchanged replay is not the measured step: take what follows for rough.")
    return " ".join(out)


def _order(made: Schedule) -> str:
    """Names the engine's schedule whose order this one has, if any."""
    order = like(made)
    return f"the order of {order}" if order else "an order of its own"


def _chart(found: Recovered, made: Replay, step: int) -> Chart:
    """Measured over predicted, with the trace's own rank numbers."""
    ranks = {q: found.first_ranks(q) for q in list(made.spans)[:DRAWN_RANKS]}
    measured = {theirs: found.rows[ours] for ours, theirs in ranks.values()}
    predicted = {ranks[q][1]: rows for q, rows in made.spans.items() if q in ranks}
    part = f", {len(ranks)} of {len(made.spans)} pipeline ranks" if len(made.spans) > len(ranks) else ""
    return both_steps(measured, found.step, predicted, made.step, f"{step_text(step)}{part}")
