"""Benchmark of the time from submitting a run to the start of its step 1, on 2 and 4 warm CPU ranks."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.bench import goals
from parallel_core.local import LocalRunner
from parallel_core.outcome import RankRecords
from parallel_core.spec import RunSpec

MOST_S = {2: 0.2, 4: 0.4}
"""Ranks -> goal."""


def run(rounds: int) -> dict[str, Any]:
    """Returns by number of ranks `seconds` (one per round), and their `median`."""
    seconds: dict[int, list[float]] = {ranks: [] for ranks in MOST_S}
    with LocalRunner() as runner, tempfile.TemporaryDirectory() as folder:
        runner.wait_ready()
        for i in range(rounds):
            for ranks, found in seconds.items():
                run = {"parallel": {"dp": ranks}, "train": {"steps": 4, "warmup_steps": 1}}
                found.append(_one(runner, RunSpec.model_validate(run), Path(folder) / f"{ranks}-{i}", Path(folder)))
    median = {ranks: float(np.median(found)) for ranks, found in seconds.items()}
    parts = " and ".join(f"{value:.2f} s on {ranks} ranks" for ranks, value in median.items())
    judged = [goals.below(f"seconds to step 1, {ranks} ranks", median[ranks], most) for ranks, most in MOST_S.items()]
    text = f"{parts} from submit to the start of step 1"
    return {"seconds": seconds, "median": median, "goals": judged, "text": text}


def _one(runner: LocalRunner, spec: RunSpec, folder: Path, corpora: Path) -> float:
    submitted = time.time()
    outcome = runner.run(spec, folder, corpora=corpora)
    if not outcome.ok:
        raise RuntimeError(outcome.failure())
    return max(_step_1(frames) for frames in outcome.frames.values()) - submitted


def _step_1(frames: RankRecords) -> float:
    """Returns the unix time at which a rank ended step 0: the 'timed' phase begins with step 1."""
    return next(float(f.header["t"]) for f in frames.of("phase") if f.header["phase"] == "timed")
