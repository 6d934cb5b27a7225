"""From handing a run to the fork server to the start of its step 1, on two warm CPU ranks."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.local import LocalYard
from parallel_core.observe.records import Frame
from parallel_core.spec import RunSpec


def run(rounds: int) -> dict[str, Any]:
    """Results: seconds (one a round), median."""
    spec = RunSpec.model_validate({"parallel": {"dp": 2}, "train": {"steps": 4, "warmup_steps": 1}})
    seconds = []
    with LocalYard() as yard, tempfile.TemporaryDirectory() as folder:
        yard.wait_ready()
        for i in range(rounds):
            seconds.append(_one(yard, spec, Path(folder) / str(i), Path(folder)))
    median = float(np.median(seconds))
    return {"seconds": seconds, "median": median, "text": f"{median:.2f} s from submit to the start of step 1"}


def _one(yard: LocalYard, spec: RunSpec, folder: Path, corpora: Path) -> float:
    submitted = time.time()
    outcome = yard.run(spec, folder, corpora=corpora)
    if not outcome.ok:
        raise RuntimeError(outcome.failure())
    return max(_step_1(frames) for frames in outcome.frames.values()) - submitted


def _step_1(frames: list[Frame]) -> float:
    """Unix time at which a rank ended step 0: the 'timed' phase begins with step 1."""
    return next(float(f.header["t"]) for f in frames if f.kind == "phase" and f.header["phase"] == "timed")
