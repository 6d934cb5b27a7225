"""Titles of a trace's charts: the rank that stands out, or that none does."""

from __future__ import annotations

import numpy as np
import pytest

from dashboard.charts.timeline import Step
from dashboard.traces import page
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind


def step(*busy_ms: int, long_ms: int = 10) -> Step:
    """A rank for each of `busy_ms`; the last one's step takes `long_ms`, the others' 10."""
    spans = {}
    for rank, busy in enumerate(busy_ms):
        rows = np.zeros(2, SPAN)
        rows["kind"], rows["micro_batch"] = (Kind.STEP, Kind.F), -1
        rows["end"] = ((long_ms if rank == len(busy_ms) - 1 else 10) * 1e6, busy * 1e6)
        spans[rank] = rows
    return Step(spans)


@pytest.mark.parametrize(
    ("found", "idle", "longest"),
    [
        (step(6, 6), "Each rank is idle for 40 % of its step", "10 ms: the step of each rank is as long"),
        (step(6, 4), "Rank 1 is idle most: 60 % of its step", "10 ms: the step of each rank is as long"),
        (step(6, 6, long_ms=12), "Rank 1 is idle most: 50 % of its step", "The longest step is that of rank 1: 12 ms"),
        (step(6), "40 % of the step is idle", "One step of rank 0"),
    ],
)
def test_a_rank_is_named_only_where_it_stands_out(found: Step, idle: str, longest: str) -> None:
    assert page._least(found, "idle") == idle
    assert page.where(found, "").title == longest
