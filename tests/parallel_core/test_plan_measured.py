"""The predicted peak against the meter's, on real ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parallel_core.local import LocalYard
from parallel_core.plan.memory import predict
from parallel_core.spec import RunSpec

PIPELINE = {"pp": 2, "micro_batches": 4}


@pytest.fixture(scope="module")
def yard() -> Iterator[LocalYard]:
    with LocalYard() as opened:
        yield opened


@pytest.mark.parametrize(
    ("split", "precision", "tied"),
    [
        ({}, "fp32", False),
        ({"recompute": "full", "micro_batches": 2}, "fp64", True),
        ({"dp": 2}, "fp32", False),
        ({"tp": 2}, "fp32", False),
        ({**PIPELINE, "schedule": "naive"}, "fp32", False),
        ({**PIPELINE, "schedule": "gpipe"}, "fp32", True),
        ({**PIPELINE, "schedule": "1f1b"}, "fp64", False),
        ({**PIPELINE, "schedule": "1f1b", "recompute": "full", "micro_batches": 8}, "fp32", False),
        ({**PIPELINE, "schedule": "gpipe", "recompute": "full", "cuts": [4]}, "fp32", False),
    ],
)
def test_prediction_is_within_five_percent(
    yard: LocalYard, tmp_path: Path, split: dict[str, Any], precision: str, tied: bool
) -> None:
    spec = RunSpec.model_validate(
        {
            "model": {"layers": 3, "hidden": 64, "heads": 4, "seq": 64, "vocab": 256, "tied": tied},
            "parallel": split,
            "train": {"steps": 3, "warmup_steps": 2, "global_batch": 16, "precision": precision},
        }
    )
    outcome = yard.run(spec, tmp_path)
    assert outcome.ok, outcome.failure()
    for predicted in predict(spec):
        measured = outcome.last(predicted.rank, "memory")
        assert measured is not None
        for category in ("params", "grads", "optimizer"):
            assert measured["peak"][category] == predicted.as_dict()[category]
        assert measured["peak_total"] == pytest.approx(predicted.total, rel=0.05)
