"""Benchmark of the analysis of one large traced step: accounts, critical path, and comparison with a plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from parallel_core.analysis.breakdown import accounts
from parallel_core.analysis.critical import critical_path
from parallel_core.analysis.lateness import lateness
from parallel_core.bench import goals
from parallel_core.layout import Layout
from parallel_core.observe.records import SPAN
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec

SPANS = 1_000_000
MOST_S = 2.0
"""Goal for the accounts of so many spans."""
KINDS = (Kind.RECV_ACT, Kind.F, Kind.SEND_ACT, Kind.RECV_GRAD, Kind.BW, Kind.SEND_GRAD, Kind.TP_COLLECTIVE, Kind.BUCKET)


def run(rounds: int, count: int = SPANS) -> dict[str, Any]:
    """Returns the seconds of each analysis, median of `rounds`, for `count` spans over 8 ranks (dp 2 x tp 2 x pp 2)."""
    layout = Layout.of(RunSpec.model_validate({"parallel": {"dp": 2, "tp": 2, "pp": 2}}))
    spans = made(layout, count)
    work: dict[str, Callable[[], object]] = {
        "accounts": lambda: accounts(spans, layout),
        "critical_path": lambda: critical_path(spans, layout),
        "lateness": lambda: lateness(spans, spans, layout),
    }
    found = {name: float(np.median([_seconds(do) for _ in range(max(1, rounds))])) for name, do in work.items()}
    said = ", ".join(f"{name.replace('_', ' ')} {seconds:.2f} s" for name, seconds in found.items())
    judged = [goals.at_most("seconds for the accounts", found["accounts"], MOST_S)] if count == SPANS else []
    return {**found, "spans": count, "goals": judged, "text": f"{count:,} spans on {layout.world} ranks: {said}"}


def made(layout: Layout, count: int) -> dict[int, np.ndarray]:
    """Returns slightly overlapping spans of random lengths, equally many on every rank; the same at every call."""
    random, each = np.random.default_rng(0), count // layout.world
    out = {}
    for rank in range(layout.world):
        rows = np.zeros(each, SPAN)
        rows["kind"] = np.resize(KINDS, each)
        rows["start"] = 10 * np.arange(each)
        rows["end"] = rows["start"] + random.integers(1, 15, each)
        rows["stage"], rows["micro_batch"] = layout.coords(rank).place, np.arange(each) // len(KINDS)
        out[rank] = rows
    return out


def _seconds(do: Callable[[], object]) -> float:
    start = time.perf_counter()
    do()
    return time.perf_counter() - start
