"""A traced step against its plan: both in one chart with the critical path, and the operations that made it late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.charts import overlay
from dashboard.charts.gantt_bars import length
from parallel_core.analysis.critical import critical_path
from parallel_core.analysis.lateness import late, lateness
from parallel_core.analysis.quantities import ns_text, percent_text
from parallel_core.analysis.rows import durations
from parallel_core.analysis.waits import waited_if_whole
from parallel_core.layout import Layout
from parallel_core.schedule.ir import Kind
from parallel_core.schedule.text import WORDS

SHOWN = 10
"""The most rows in the list of late operations."""
Spans = Mapping[int, NDArray[np.void]]


def against_plan(planned: Spans, spans: Spans, layout: Layout, source: str, names: Mapping[int, int]) -> dict[str, Any]:
    """The context of `runs/planned.html`. `planned` is by pipeline rank, as `simulate.replay.plan` makes it, `spans` by
    rank of the layout; `names` = what each of these ranks is called, where that is another number."""
    joined, path = lateness(planned, spans, layout), critical_path(spans, layout)
    waits, shown = waited_if_whole(spans, layout), spans
    if names:  # who was waited for is a rank of the layout, too: it is left out
        shown, waits = {names[rank]: rows for rank, rows in spans.items()}, {}
        for table in (joined, path):
            table["rank"] = [names[rank] for rank in table["rank"].tolist()]
    chart = overlay.chart(shown, joined, path, _title(joined, length(spans)), source, waits)
    return {"overlay": chart, "late": late_rows(joined), "late_total": len(joined)}


def _title(joined: NDArray[np.void], step: int) -> str:
    drawn = joined[overlay.outlined(joined)]
    delays = late(drawn)
    if not len(delays):
        return "No operation of this step was planned."
    worst = int(delays.argmax())
    lateness_ns = int(delays[worst])
    if lateness_ns < 0.02 * step:
        return f"No operation ends more than {percent_text(0.02)} of the step later than planned."
    row = drawn[worst]
    which = _operation(row)
    return f"{ns_text(lateness_ns)} is the most that an operation is late: {which} on rank {row['rank']}."


def late_rows(joined: NDArray[np.void]) -> list[dict[str, Any]]:
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
