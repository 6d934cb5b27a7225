"""The plan of a step of an imported trace, over what was measured: as on the page of a run."""

from __future__ import annotations

from typing import Any

from dashboard.runs.tracing.planned import against_plan
from dashboard.runs.tracing.traces import measured
from dashboard.traces.models import Trace
from dashboard.traces.page import source_of
from dashboard.traces.spans import device_of, step_of
from dashboard.traces.whatif_pipeline import known
from parallel_core.analysis.quantities import step_text
from parallel_core.layout import Layout
from parallel_core.simulate.imported import MOST_SPANS
from parallel_core.simulate.recovered_replay import Recovered
from parallel_core.simulate.replay import plan

NO_PIPELINE = "its schedule is not known: the ranks are not the stages of a pipeline that can be recovered."


def context(trace: Trace, step: int) -> dict[str, Any]:
    """The context of `traces/planned.html`: `why_not`, or what `against_plan` returns, with what is `known` of a
    pipeline that no spec describes."""
    found, source, spec = step_of(trace, step), f"{source_of(trace)}, {step_text(step)}", trace.trained
    try:
        if spec is not None:
            planned = plan(spec, measured(spec, found.spans, found.layout))
            return against_plan(planned, found.spans, found.layout, source, {})
        pipeline = Recovered.of(found.spans, device_of(trace)) if found.total <= MOST_SPANS else None
        if pipeline is None:
            return {"why_not": NO_PIPELINE}
        planned, layout = plan(pipeline.spec, pipeline.measured), Layout.of(pipeline.spec)
    except ValueError as error:
        return {"why_not": f"{str(error).rstrip('.')}."}
    names = {rank: theirs for rank, theirs in pipeline.ranks.items() if rank != theirs}
    made = against_plan(planned, pipeline.rows, layout, source, pipeline.ranks if names else {})
    return made | {"known": known(pipeline, trace.counted(step))}
