"""The Memory tab's picture: every metered rank over its step, what was predicted, and micro-batches in flight."""

from __future__ import annotations

import numpy as np
from pydantic import ValidationError

from dashboard.charts import memory_over_time
from dashboard.charts.chart import Chart
from dashboard.charts.memory_over_time import Metered
from dashboard.runs import selectors
from dashboard.runs.models import Run
from parallel_core.layout import Layout
from parallel_core.observe.records import MEMORY, SPAN
from parallel_core.plan.memory import by_stage
from parallel_core.spec import RunSpec

MOST_SPANS = 20_000
"""Of a step: beyond, what is in flight is not counted."""


def over_time(run: Run) -> Chart | None:
    """None where no step was metered, or none with its curve."""
    records = {rank: record for rank, record in selectors.memory(run).items() if len(record.curve)}
    if not records:
        return None
    predicted = _predicted(run)
    step = selectors.typical_step(run) or selectors.newest_traced_step(run)
    spans = selectors.spans(run, step) if step is not None else {}
    if sum(map(len, spans.values())) > MOST_SPANS:
        spans = {}
    ranks = [
        Metered(
            rank,
            np.frombuffer(bytes(record.curve), MEMORY),
            record.peak,
            predicted.get(rank),
            spans.get(rank, np.empty(0, SPAN)),
        )
        for rank, record in sorted(records.items())
    ]
    metered = next(iter(records.values())).step
    return memory_over_time.chart(
        ranks, f"measured, metered step {metered}" + (f", traced step {step}" if spans else "")
    )


def _predicted(run: Run) -> dict[int, int]:
    """rank -> bytes; {} where the spec is of another version."""
    try:
        spec = RunSpec.stored(run.spec)
    except ValidationError:
        return {}
    layout = Layout.of(spec)
    totals = {layout.coords(found.rank).place: found.total for found in by_stage(spec)}
    return {rank: totals[place] for rank in range(layout.world) if (place := layout.coords(rank).place) in totals}
