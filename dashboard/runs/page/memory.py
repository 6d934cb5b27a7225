"""The Memory tab's chart: memory of every metered rank over its step, predicted peaks, and micro-batches in flight."""

from __future__ import annotations

import numpy as np
from pydantic import ValidationError

from dashboard.charts import memory_over_time
from dashboard.charts.chart import Chart
from dashboard.charts.memory_over_time import Metered
from dashboard.runs import selectors
from dashboard.runs.models import Run
from parallel_core.analysis.quantities import step_text
from parallel_core.layout import Layout
from parallel_core.observe.records import MEMORY, SPAN
from parallel_core.plan.memory import counted_stages
from parallel_core.spec import RunSpec

MOST_SPANS = 20_000
"""If the step has more, micro-batches in flight are not counted."""


def over_time(run: Run) -> Chart | None:
    """The chart; None if no step was metered, or none has a curve."""
    records = {rank: record for rank, record in selectors.memory(run, curves=True).items() if len(record.curve)}
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
        ranks,
        f"measured, metered {step_text(metered)}"
        + (f", traced {step_text(step)}" if spans and step is not None else ""),
    )


def _predicted(run: Run) -> dict[int, int]:
    """rank -> predicted bytes; {} if the spec was stored by another version, or the run takes too long to count."""
    try:
        spec = RunSpec.stored(run.spec)
    except ValidationError:
        return {}
    layout = Layout.of(spec)
    totals = {layout.coords(found.rank).place: found.total for found in counted_stages(spec)}
    return {rank: totals[place] for rank in range(layout.world) if (place := layout.coords(rank).place) in totals}
