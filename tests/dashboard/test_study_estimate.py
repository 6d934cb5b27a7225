"""The expected time of a run before it is queued."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.studies.new.estimate import METERED_STEPS, START_S, run_seconds, step_seconds
from parallel_core.spec import RunSpec

CALIBRATION = {"model": {"layers": 8}, "global_batch": 48, "step_time": 0.1}
STASH = {"schedule": "1f1b-stash", "pp": 4, "micro_batches": 1}


@pytest.mark.parametrize(
    ("split", "warmup", "memory", "plain", "metered"),
    [
        ({}, 3, False, 20, 0),
        ({}, 3, True, 19, 1),
        ({}, 0, True, 20, 1),
        (STASH, 10, True, 16, 4),
        (STASH, 0, True, 23, 4),
        (STASH, 0, False, 20, 0),
    ],
)
def test_every_step_under_the_memory_meter_is_counted(
    split: dict[str, Any], warmup: int, memory: bool, plain: int, metered: int
) -> None:
    """Without a flush also those in which the pipeline fills, and the plain ones in which it drains after the last."""
    train = {"global_batch": 48, "clip": "stage", "steps": 20, "warmup_steps": warmup}
    made = {"model": {"layers": 8}, "parallel": split, "train": train, "trace": {"memory": memory}}
    spec = RunSpec.model_validate(made)
    steps = (run_seconds(spec, CALIBRATION) - START_S) / step_seconds(spec, CALIBRATION)
    assert steps == pytest.approx(plain + METERED_STEPS * metered)
