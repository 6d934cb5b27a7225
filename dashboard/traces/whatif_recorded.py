"""What-if for a step exported by a yard: from its own spec and spans, as on the page of its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.charts.timeline import Step
from dashboard.runs.tracing.traces import measured
from dashboard.runs.tracing.whatif_form import WhatIfForm, replayed
from dashboard.runs.tracing.whatif_replay import Times, chart, single_changes
from dashboard.runs.tracing.whatif_words import check, sentence
from dashboard.traces.whatif import WhatIf
from parallel_core.simulate.replay import ASSUMED, Change, Replay, replay
from parallel_core.spec import RunSpec

_KNOWN = "As recorded: the schedule is that of the run's spec, every operation is named by the run itself."


def whatif(found: Step, step: int, given: Mapping[str, Any], spec: RunSpec) -> WhatIf:
    """The what-if of one step; `given` = the page's query."""
    try:
        costs = measured(spec, found.spans, found.layout)
    except ValueError as error:
        return WhatIf(f"No what-if of this step: {error}")

    def how(change: Change) -> Replay:
        return replay(spec, costs, change)

    form = WhatIfForm(spec, given)
    made, again = replayed(form, how), how(Change()).step
    return WhatIf(
        form=form,
        known=_KNOWN,
        sentence=sentence(form.change(), made, costs.step, spec) if made else "",
        check=check(again, costs.step),
        foot=ASSUMED,
        ideas=single_changes(spec, costs.step, how, {"step": step}),
        times=Times(costs.step, again, made.step if made else None),
        chart=chart(found.spans, found.layout, costs.step, made, step) if made else None,
    )
