"""How long a study will take, estimated from the one step time that a worker measured at its first boot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dashboard.fleet.selectors import FleetSnapshot, devices_of
from parallel_core.observe.observed_steps import extra_steps, followed_steps
from parallel_core.plan.evaluations import evaluation_steps, evaluations
from parallel_core.plan.partition import flop_weights
from parallel_core.plan.strategy import ideal_speedup
from parallel_core.spec import ModelSpec, RunSpec

START_S = 3.0
"""Seconds from one run of a study to the next: place, fork, build the model, write the end."""
METERED_STEPS = 3.0
"""A step under the memory meter takes about as long as this many plain ones."""
COST = {
    "cpu": {"fp32": 1.0, "fp64": 2.0, "bf16": 1.8, "fp16": 1.8},
    "cuda": {"fp32": 1.0, "fp64": 2.0, "bf16": 0.5, "fp16": 0.5},
}
"""Time of a step compared with fp32, by device kind: CPUs gain nothing from 16 bits (measured), GPUs have units for
them."""
EFFICIENCY = {"dp": 0.75, "tp": 0.45, "pp": 0.65}
"""Share of the ideal speedup that is reached on an axis, measured with gloo on a small GPT; a first guess on the slow
side, so that a study does not take longer than its form says."""


@dataclass(frozen=True)
class Estimate:
    """`minutes` is None if the time is not known; then `unknown` says why."""

    runs: int
    devices: int
    minutes: float | None
    later: int = 0
    """How many of the runs are queued only as the others answer."""
    unknown: str = "no worker has calibrated yet"
    source: str = ""
    """A sentence on what the time is from, where that is not the calibration."""
    bound: bool = False
    """Whether each known time is an upper bound."""

    @property
    def first(self) -> int:
        """How many are queued at once."""
        return self.runs - self.later


def calibration(kind: str, fleet: FleetSnapshot, names: Collection[str] = ()) -> dict[str, Any] | None:
    """The calibration of the most recently heard worker with devices of that kind, one of `names` unless that is empty;
    None if there is none."""
    among = [worker for worker in fleet.every if not names or worker.name in names]
    able = [worker for worker in among if worker.calibration and kind in devices_of(worker)]
    newest = max(able, key=lambda worker: worker.heartbeat_at or worker.created_at, default=None)
    return dict(newest.calibration) if newest else None


def step_seconds(spec: RunSpec, calibration: Mapping[str, Any]) -> float:
    """Expected seconds of one step: the calibrated step scaled by FLOPs and precision, divided by the expected speedup.

    calibration = {device, model, global_batch, step_time}: one device, fp32, no recomputation.
    """
    reference = ModelSpec.model_validate(calibration["model"])
    work = sum(flop_weights(spec.model)) * spec.train.global_batch
    unit = sum(flop_weights(reference)) * int(calibration["global_batch"])
    width = COST[spec.train.device][spec.train.precision]
    return float(calibration["step_time"]) * width * work / unit / _expected_speedup(spec)


def run_seconds(spec: RunSpec, calibration: Mapping[str, Any]) -> float:
    """Expected seconds of a whole run, including its start."""
    steps = spec.train.steps + len(extra_steps(spec)) + (METERED_STEPS - 1) * len(followed_steps(spec))
    train = spec.train
    held_out = evaluations(train.eval_every, train.steps) * evaluation_steps(train.eval_samples, train.global_batch)
    return START_S + (steps + held_out) * step_seconds(spec, calibration)


def estimate(specs: Iterable[RunSpec], calibration: Mapping[str, Any] | None, repeats: int = 1) -> Estimate:
    """For runs that execute one after another, each `repeats` times."""
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
