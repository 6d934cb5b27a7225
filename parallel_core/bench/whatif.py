"""Is "what if" right? Runs of one model under several schedules, each predicted from the traced steps of every other.

Runs take turns, and of each the step counts, on both sides, that a tenth of its steps are quicker than: what else the
machine does is nobody's prediction, and the quickest one of many is luck.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.layout import Layout
from parallel_core.local import LocalYard, Outcome
from parallel_core.observe.records import SPAN
from parallel_core.schedule import build
from parallel_core.simulate.measured import Measured, measure
from parallel_core.simulate.replay import Change, replay
from parallel_core.spec import RunSpec

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1")
QUICKER = 10
"""One in so many steps is quicker than the one that counts."""
MODEL = {"layers": 4, "hidden": 128, "heads": 4, "seq": 128}


def run(rounds: int) -> dict[str, Any]:
    """Results: errors {"from -> to": relative}, their worst and median; replay: the worst error of an unchanged one."""
    every: dict[str, list[Measured]] = {name: [] for name in SCHEDULES}
    unchanged = []
    with LocalYard() as yard, tempfile.TemporaryDirectory() as folder:
        for turn in range(max(1, rounds)):
            for name in SCHEDULES:
                for step in _steps(_spec(name), yard.run(_spec(name), Path(folder) / f"{turn}-{name}")):
                    unchanged.append(abs(replay(_spec(name), step, Change()).step / step.step - 1))
                    every[name].append(step)
    quick = {name: sorted(own, key=lambda one: one.step)[len(own) // QUICKER] for name, own in every.items()}
    errors = {
        f"{a} -> {b}": replay(_spec(a), quick[a], Change(schedule=b)).step / quick[b].step - 1
        for a in SCHEDULES
        for b in SCHEDULES
        if a != b
    }
    sizes = np.abs(list(errors.values()))
    worst, median, same = float(sizes.max()), float(np.median(sizes)), float(max(unchanged))
    text = f"another schedule within {worst:.1%} (median {median:.1%}); an unchanged replay within {same:.2%}"
    return {"errors": errors, "worst": worst, "median": median, "replay": same, "text": text}


def _spec(schedule: str) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": MODEL,
            "parallel": {"pp": 2, "micro_batches": 4, "schedule": schedule},
            "train": {"global_batch": 16, "steps": 21},
            "trace": {"trace_every": 2, "memory": False},
        }
    )


def _steps(spec: RunSpec, outcome: Outcome) -> list[Measured]:
    """Costs of every traced step."""
    if not outcome.ok:
        raise RuntimeError(outcome.failure())
    found: dict[int, dict[int, np.ndarray]] = {}
    for rank, frames in outcome.frames.items():
        for frame in frames:
            if frame.kind == "spans":
                found.setdefault(int(frame.header["step"]), {})[rank] = np.frombuffer(frame.blob, SPAN)
    return [measure(build(spec), spans, Layout.of(spec)) for spans in found.values()]
