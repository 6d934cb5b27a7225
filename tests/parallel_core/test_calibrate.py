"""The ladder of models from which a calibration chooses, and one calibration of this host."""

from __future__ import annotations

from itertools import pairwise

import pytest

from parallel_core.calibrate import BATCH, calibrate, ladder, nearest
from parallel_core.plan.strategy import model_flops
from parallel_core.spec import ModelSpec, RunSpec


def test_rungs_rise_in_small_steps() -> None:
    work = [model_flops(rung, BATCH) for rung in ladder()]
    assert all(1 < after / before <= 2.6 for before, after in pairwise(work))


@pytest.mark.parametrize("rung", ladder(), ids=lambda rung: f"{rung.hidden}x{rung.seq}")
def test_every_rung_can_be_split_every_way(rung: ModelSpec) -> None:
    for split in ({"dp": 2, "micro_batches": 8}, {"tp": 4}, {"dp": 2, "tp": 2, "pp": 2, "micro_batches": 4}, {"pp": 4}):
        spec = {"model": rung.model_dump(), "parallel": split, "train": {"global_batch": BATCH}}
        assert RunSpec.model_validate(spec).micro_batch_size >= 1


def test_nearest_is_by_ratio() -> None:
    small, large = ladder()[2], ladder()[9]
    between = (model_flops(small, BATCH) * model_flops(large, BATCH)) ** 0.5
    assert nearest([small, large], between * 0.9) is small
    assert nearest([small, large], between * 1.1) is large


def test_this_host_gets_a_model_that_can_be_trained() -> None:
    found = calibrate(rounds=2)
    assert ModelSpec.model_validate(found["model"]) in ladder()
    assert found["device"] == "cpu" and found["global_batch"] == BATCH
    assert found["step_time"] > 0 and found["flops_per_s"] > 0
