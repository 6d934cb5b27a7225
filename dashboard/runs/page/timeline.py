"""The Timeline tab: planned over measured operations, the critical path, and the operations that made the step late."""

from __future__ import annotations

from typing import Any

from dashboard.runs import selectors
from dashboard.runs.models import Run
from dashboard.runs.tracing import traces
from dashboard.runs.tracing.planned import against_plan
from parallel_core.analysis.quantities import step_text
from parallel_core.simulate.replay import plan


def context(run: Run, step: int | None) -> dict[str, Any]:
    """The tab's context; without a trace if no traced step has arrived."""
    trace = traces.trace(run, step)
    if trace is None:
        return {"trace": None, "dropped": selectors.dropped_text(run, step)}
    found: dict[str, Any] = {"trace": trace, "kept": trace.kept, "total": trace.total}
    try:
        planned = plan(trace.trained, trace.measured)
    except ValueError as error:
        return found | {"why_not": str(error)}
    return found | against_plan(planned, trace.spans, trace.layout, f"measured, {step_text(trace.step)}", {})
