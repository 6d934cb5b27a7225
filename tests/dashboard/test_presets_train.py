"""Presets of models of images bring their loss down in the few steps that they have."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dashboard.runs.form.presets import BY_KEY
from parallel_core.local import LocalRunner
from parallel_core.spec import RunSpec

CLASSES = 10


@pytest.mark.full
@pytest.mark.parametrize("key", ["vgg16", "resnet50"])
def test_the_loss_of_a_preset_falls(key: str, tmp_path: Path) -> None:
    """On one device, which trains the same. ResNet-50 with AdamW was no better than guessing after all its steps."""
    made = {**BY_KEY[key].spec, "parallel": {}, "trace": {"memory": False, "reference": False}}
    with LocalRunner() as runner:
        outcome = runner.run(RunSpec.model_validate(made), tmp_path)
    assert outcome.ok, outcome.failure()
    losses = outcome.series("loss")["value"]
    assert losses[-8:].mean() < 0.75 * math.log(CLASSES), losses
