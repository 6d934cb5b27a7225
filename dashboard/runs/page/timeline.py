"""The Timeline tab: planned over measured operations, the critical path, and the operations that made the step late."""

from __future__ import annotations

from typing import Any

import numpy as np

from dashboard.charts import overlay
from dashboard.charts.chart import Chart
from dashboard.runs import selectors
from dashboard.runs.models import Run
from dashboard.runs.tracing import traces
from dashboard.runs.tracing.traces import Trace
from parallel_core.analysis.critical import critical_path
from parallel_core.analysis.lateness import late, lateness
from parallel_core.analysis.quantities import ns_text, percent_text, step_text
from parallel_core.analysis.rows import durations
from parallel_core.analysis.waits import waited_if_whole
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.text import WORDS
from parallel_core.simulate.replay import plan

SHOWN = 10
"""The most rows in the list of late operations."""


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
    joined = lateness(planned, trace.spans, trace.layout)
    return found | {"overlay": _chart(trace, joined), "late": late_rows(joined), "late_total": len(joined)}


def _chart(trace: Trace, joined: np.ndarray) -> Chart:
    path = critical_path(trace.spans, trace.layout)
    source, waits = f"measured, {step_text(trace.step)}", waited_if_whole(trace.spans, trace.layout)
    return overlay.chart(trace.spans, joined, path, _title(trace, joined), source, waits)


def _title(trace: Trace, joined: np.ndarray) -> str:
    drawn = joined[overlay.outlined(joined)]
    delays = late(drawn)
    if not len(delays):
        return "No operation of this step was planned."
    worst = int(delays.argmax())
    lateness_ns, length = int(delays[worst]), trace.length
    if lateness_ns < 0.02 * length:
        return f"No operation ends more than {percent_text(0.02)} of the step later than planned."
    row = drawn[worst]
    which = _operation(row)
    return f"{ns_text(lateness_ns)} is the most that an operation is late: {which} on rank {row['rank']}."


def late_rows(joined: np.ndarray) -> list[dict[str, Any]]:
    """The operations that took longest compared with their planned duration, worst first."""
    own = durations(joined) - (joined["planned_end"] - joined["planned_start"])
    working = overlay.outlined(joined)
    order = np.argsort(np.where(working, -own, np.iinfo(np.int64).max), kind="stable")[:SHOWN]
    return [
        {
            "rank": int(row["rank"]),
            "operation": _operation(row),
            "planned": ns_text(int(row["planned_end"]), zeros=True),
            "measured": ns_text(int(row["end"]), zeros=True),
            "late": _signed(int(row["end"] - row["planned_end"])),
            "own": _signed(int(own[i])),
        }
        for i in order.tolist()
        if own[i] > 0 and working[i]
        for row in [joined[i]]
    ]


def _operation(row: np.void) -> str:
    which = f" {row['micro_batch']}" if row["micro_batch"] >= 0 else ""
    kind = Kind(int(row["kind"]))
    return f"{WORDS.get(kind, kind.name)}{which} of stage {row['stage']}"


def _signed(ns: int) -> str:
    return f"{'−' if ns < 0 else '+'}{ns_text(abs(ns), zeros=True)}" if ns else "0"
