"""The study that a new yard begins with: which strategies, and how many steps fit into a few minutes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.fleet.models import Worker
from dashboard.runs.services import Invalid
from dashboard.studies.models import Study
from dashboard.studies.new import variants
from dashboard.studies.new.axes import USUAL_MICRO_BATCHES, Axes
from dashboard.studies.new.estimate import START_S, step_seconds
from dashboard.studies.new.strategies import STARTER
from dashboard.studies.new.variants import USUAL_TIMED_STEPS, Spec
from dashboard.studies.services import NewStudy, create

STARTER_SECONDS = 220.0
"""The longest estimate for the starter study, so that it is done within 5 minutes of the first page."""


def create_starter(*, owner: Any, worker: Worker) -> Study:
    """The study that every new yard begins with: single, naive, DP, TP and both pipelines, plain and with AR.

    Model, batch and step come from the worker's calibration, so that they suit any device; the number of timed steps is
    what fits into STARTER_SECONDS, from 10 to 40. Raises Invalid if the worker has no calibration.
    """
    if not worker.calibration:
        raise Invalid({"worker": f"Worker {worker.name} has not calibrated yet."})
    devices = min(2, max(1, len(worker.devices)))
    base = starter_base(worker.calibration)
    axes = Axes(
        strategies=STARTER if devices > 1 else ("single", "single-m"),
        micro_batches=(_dividing(USUAL_MICRO_BATCHES, base["train"]["global_batch"]),),
        devices=devices,
    )
    steps = _fitting_steps(base, axes, worker.calibration)
    note = "" if devices > 1 else "This fleet has one device, so only the single-device variants were queued."
    asked = {**axes.asked(), "timed_steps": steps}
    new = NewStudy("starter", base, variants.matrix(base, axes, steps), asked, note)
    return create(owner=owner, name="Starter: one GPT, every strategy", new=new)


def starter_base(calibration: Mapping[str, Any]) -> Spec:
    """The base spec for a calibration {device, model, global_batch, step_time}."""
    return {
        "model": dict(calibration["model"]),
        "train": {
            "global_batch": int(calibration["global_batch"]),
            "warmup_steps": variants.WARMUP_STEPS,
            "device": "cuda" if str(calibration.get("device", "cpu")).startswith("cuda") else "cpu",
        },
    }


def _dividing(wanted: int, batch: int) -> int:
    """The largest number of micro-batches up to `wanted` that divides the batch."""
    return next(m for m in range(wanted, 0, -1) if batch % m == 0)


def _fitting_steps(base: Spec, axes: Axes, calibration: Mapping[str, Any]) -> int:
    """Timed steps of a run, 10 to 40, such that all variants together take at most STARTER_SECONDS."""
    plan = variants.matrix(base, axes)
    fixed = len(plan.variants) * START_S
    one_step = sum(step_seconds(v.spec, calibration) for v in plan.variants)
    extra = variants.WARMUP_STEPS + 3
    steps = int((STARTER_SECONDS - fixed) / one_step) - extra if one_step else USUAL_TIMED_STEPS
    return max(variants.MIN_TIMED_STEPS, min(USUAL_TIMED_STEPS, steps))
