"""How long a study will take, from the one step time that a worker measured at its first boot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dashboard.fleet.selectors import FleetSnapshot, devices_of
from parallel_core.plan.partition import flop_weights
from parallel_core.plan.strategy import ideal_speedup
from parallel_core.spec import ModelSpec, RunSpec

START_S = 3.0
"""From one run of a study to the next: place, fork, build the model, write the end."""
METERED_STEPS = 3.0
"""The step whose memory is followed costs about this many plain ones."""
COST = {
    "cpu": {"fp32": 1.0, "fp64": 2.0, "bf16": 1.8, "fp16": 1.8},
    "cuda": {"fp32": 1.0, "fp64": 2.0, "bf16": 0.5, "fp16": 0.5},
}
"""Time of a step against fp32, by device kind: CPUs gain nothing from 16 bits (measured), GPUs have units for them."""
EFFICIENCY = {"dp": 0.75, "tp": 0.45, "pp": 0.65}
"""Share of the ideal speedup that is reached a doubling of the axis, measured with gloo on a small GPT; a first guess
that errs on the slow side, so that what a form promises is kept."""


@dataclass(frozen=True)
class Estimate:
    """`minutes` is None where no worker has calibrated yet."""

    runs: int
    devices: int
    minutes: float | None


def calibration(kind: str, fleet: FleetSnapshot) -> dict[str, Any] | None:
    """That of the worker with devices of that kind which was heard of last; None before the first."""
    able = [worker for worker in fleet.every if worker.calibration and kind in devices_of(worker)]
    newest = max(able, key=lambda worker: worker.heartbeat_at or worker.created_at, default=None)
    return dict(newest.calibration) if newest else None


def step_seconds(spec: RunSpec, calibration: Mapping[str, Any]) -> float:
    """Expected seconds of one step: the calibrated step scaled by FLOPs, over the speedup one may expect.

    calibration = {device, model, global_batch, step_time}: one device, fp32, no recomputation.
    """
    reference = ModelSpec.model_validate(calibration["model"])
    work = sum(flop_weights(spec.model)) * spec.train.global_batch
    unit = sum(flop_weights(reference)) * int(calibration["global_batch"])
    width = COST[spec.train.device][spec.train.precision]
    return float(calibration["step_time"]) * width * work / unit / _expected_speedup(spec)


def run_seconds(spec: RunSpec, calibration: Mapping[str, Any]) -> float:
    """Expected seconds of a whole run, its start included."""
    steps = spec.train.steps + (METERED_STEPS if spec.trace.memory else 0)
    return START_S + steps * step_seconds(spec, calibration)


def estimate(specs: Iterable[RunSpec], calibration: Mapping[str, Any] | None, repeats: int = 1) -> Estimate:
    """Of runs that execute one after another, each `repeats` times."""
    listed = list(specs)
    devices = max((spec.parallel.world for spec in listed), default=0)
    seconds = sum(run_seconds(spec, calibration) for spec in listed) * repeats if calibration else None
    return Estimate(len(listed) * repeats, devices, None if seconds is None else seconds / 60)


def _expected_speedup(spec: RunSpec) -> float:
    speedup = ideal_speedup(spec)
    for axis, share in EFFICIENCY.items():
        degree = getattr(spec.parallel, axis)
        if degree > 1 and not (axis == "pp" and spec.parallel.schedule == "naive"):
            speedup *= share
    return speedup
