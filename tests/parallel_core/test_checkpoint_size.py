"""The predicted size of checkpoints, compared with those that real ranks write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallel_core.local import LocalRunner
from parallel_core.plan.checkpoint_size import checkpoint_bytes, most_checkpoints
from parallel_core.spec import RunSpec

GPT = {"layers": 2, "hidden": 32, "heads": 2, "seq": 16, "vocab": 64}


def spec_of(model: dict[str, Any], parallel: dict[str, Any], **train: Any) -> RunSpec:
    given = {"steps": 4, "warmup_steps": 1, "global_batch": 4, "checkpoint_every": 2, **train}
    return RunSpec.model_validate({"model": model, "parallel": parallel, "train": given})


@pytest.mark.parametrize(
    ("model", "parallel", "precision"),
    [
        (GPT, {"dp": 2, "zero": 1}, "bf16"),
        ({**GPT, "tied": True}, {"pp": 2, "micro_batches": 2}, "fp32"),
        (GPT, {"tp": 2}, "fp64"),
    ],
)
def test_a_checkpoint_takes_what_was_said(
    model: dict[str, Any], parallel: dict[str, Any], precision: str, runner: LocalRunner, tmp_path: Path
) -> None:
    """Counts the ranks' data files, which are the only part that grows with the model."""
    spec = spec_of(model, parallel, precision=precision)
    outcome = runner.run(spec, tmp_path)
    assert outcome.ok, outcome.failure()
    steps = {path.parent for path in tmp_path.rglob("rank-*.bin")}
    assert len(steps) == 2
    for step in steps:
        assert sum(path.stat().st_size for path in step.glob("rank-*.bin")) == checkpoint_bytes(spec)


@pytest.mark.parametrize(
    ("train", "count"),
    [
        ({"checkpoint_every": 0}, 1),
        ({"steps": 40, "keep": 3}, 4),
        ({"steps": 40, "keep": 3, "eval_every": 2, "eval_samples": 1}, 5),
        ({"steps": 4, "keep": 3}, 3),
    ],
)
def test_one_more_than_is_kept_is_there_at_once(train: dict[str, Any], count: int) -> None:
    assert most_checkpoints(spec_of(GPT, {}, **train)) == count
