"""Benchmark of always-on recording: ns per span, and its share of a real step."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.local import LocalYard
from parallel_core.observe.recorder import LANE_COMPUTE, SpanRecorder
from parallel_core.schedule.ir import Kind
from parallel_core.spec import RunSpec

SPANS = 20_000


def run(rounds: int) -> dict[str, Any]:
    """Returns ns_per_span, spans_per_step, step_s, share (of a step of the default model as two stages of 1F1B)."""
    cost = float(np.median([_cost() for _ in range(max(3, rounds))]))
    count, step = _real_step()
    share = count * cost / step
    text = f"{cost * 1e9:.0f} ns a span, {count} spans in a step of {step * 1e3:.0f} ms: {share:.4%} of it"
    return {"ns_per_span": cost * 1e9, "spans_per_step": count, "step_s": step, "share": share, "text": text}


def _cost() -> float:
    """Returns seconds per span, including both marks and the conversion to an array."""
    recorder = SpanRecorder()
    start = time.perf_counter()
    recorder.begin_step(0)
    for i in range(SPANS):
        mark = recorder.mark()
        recorder.add(Kind.F, LANE_COMPUTE, 0, i, mark, recorder.mark())
    recorder.end_step()
    return (time.perf_counter() - start) / SPANS


def _real_step() -> tuple[int, float]:
    """Returns the number of spans of one step on rank 0, and the median seconds of a step."""
    spec = RunSpec.model_validate(
        {"parallel": {"pp": 2, "micro_batches": 8}, "train": {"steps": 11}, "trace": {"trace_every": 5}}
    )
    with LocalYard() as yard, tempfile.TemporaryDirectory() as folder:
        outcome = yard.run(spec, Path(folder))
        if not outcome.ok:
            raise RuntimeError(outcome.failure())
        traced, summary = outcome.last(0, "spans"), outcome.last(0, "summary")
    assert traced is not None and summary is not None
    return int(traced["total"]), float(summary["timed"]["median"])
