"""Finds the model whose training step takes 50-200 ms on one device of this host, in about five seconds.

The starter study uses it, so that a step is long enough to time and short enough to wait for, on a slow CPU core and
on a fast GPU alike. Every model of the ladder can be split 2 x 2 x 2 and cut into 4 or 8 micro-batches.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.local import LocalRunner
from parallel_core.plan.strategy import model_flops
from parallel_core.spec import DeviceKind, ModelSpec, RunSpec

TARGET_S = 0.1
LOW_S, HIGH_S = 0.05, 0.2
BATCH = 16
_SIZES = [(32, 32), (48, 32), (64, 32), (64, 64), (96, 64), (128, 64), (128, 128), (192, 128), (256, 128), (256, 256)]
_SIZES += [(384, 256), (512, 256), (512, 512), (768, 512), (1024, 512), (1024, 1024), (1536, 1024), (2048, 1024)]
_SIZES += [(3072, 1024), (4096, 1024)]


class CalibrationFailed(RuntimeError):
    """A measuring run failed; the message says why."""


def ladder() -> list[ModelSpec]:
    """Returns models by ascending FLOPs per step; neighbours differ by a factor of at most about 2.5."""
    return [ModelSpec(layers=4, hidden=d, seq=s, heads=4 if d < 512 else 8 if d < 1024 else 16) for d, s in _SIZES]


def nearest(rungs: list[ModelSpec], flops: float) -> ModelSpec:
    """Returns the model whose FLOPs per step are nearest to `flops`, by ratio."""
    return min(rungs, key=lambda rung: abs(math.log(model_flops(rung, BATCH) / flops)))


def calibrate(device: DeviceKind = "cpu", index: int = 0, rounds: int = 4) -> dict[str, Any]:
    """Measures models until one takes 50-200 ms; returns {device, model, global_batch, step_time (s), flops_per_s}.

    Each round measures the model nearest to the target at the speed of the previous round. Where even the ends of the
    ladder are out of the range, the nearest one is returned. Raises CalibrationFailed.
    """
    rungs = ladder()
    rung, step_time = rungs[6 if device == "cpu" else 12], 0.0
    with LocalRunner() as runner, tempfile.TemporaryDirectory(prefix="trainyard-calibrate-") as folder:
        for round_ in range(rounds):
            step_time = _measure(runner, rung, device, index, Path(folder) / str(round_))
            speed = model_flops(rung, BATCH) / step_time
            better = nearest(rungs, speed * TARGET_S)
            if LOW_S <= step_time <= HIGH_S or better == rung or round_ == rounds - 1:
                break
            rung = better
    return {
        "device": device,
        "model": rung.model_dump(mode="json"),
        "global_batch": BATCH,
        "step_time": step_time,
        "flops_per_s": speed,
    }


def _measure(runner: LocalRunner, model: ModelSpec, device: DeviceKind, index: int, folder: Path) -> float:
    """Returns the median seconds of a few steps of `model` on one device."""
    spec = RunSpec.model_validate(
        {
            "model": model.model_dump(),
            "train": {"global_batch": BATCH, "steps": 5, "warmup_steps": 2, "device": device},
            "trace": {"memory": False},
        }
    )
    outcome = runner.run(spec, folder, devices=[index])
    times = outcome.series("rank_step_time")
    if not outcome.ok or not len(times):
        raise CalibrationFailed(outcome.failure() or "the run left no step times")
    return float(np.median(times["value"][times["step"] >= spec.train.warmup_steps]))
