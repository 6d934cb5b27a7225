"""The predicted peak compared with the meter's, at the moments of a GPT's backward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallel_core.local import LocalRunner
from parallel_core.plan.peak import predict
from parallel_core.spec import RunSpec
from tests.parallel_core.metered import assert_predicted, metered

GPT = {"layers": 4, "hidden": 64, "heads": 4, "seq": 64, "vocab": 256}
SHARED = {"tp": 2, "sequence": True}


@pytest.mark.parametrize("more", [{"positions": "rope"}, {"kv_heads": 2}], ids=["rope", "shared keys"])
def test_a_mix_that_w_needs_is_there_when_gradients_of_queries_keys_and_values_become_one(
    runner: LocalRunner, tmp_path: Path, more: dict[str, Any]
) -> None:
    split = {**SHARED, "pp": 2, "micro_batches": 4, "schedule": "zb-h1", "recompute": "selective"}
    assert_predicted(runner, tmp_path, GPT | more, split, "fp32", within=0.003)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_the_gradient_of_an_output_is_there_once(runner: LocalRunner, tmp_path: Path, recompute: str) -> None:
    """This rank's rows and, while they are gathered, those of all ranks: it goes through the residual connection and
    the layer.
    """
    model = {**GPT, "layers": 2, "seq": 32, "positions": "rope", "activation": "swiglu", "norm": "rmsnorm"}
    assert_predicted(runner, tmp_path, model, {**SHARED, "recompute": recompute}, "fp32", within=0.01)


def test_a_replica_receives_ahead_from_those_of_its_own_micro_batches_alone(
    runner: LocalRunner, tmp_path: Path
) -> None:
    """Of three micro-batches a step the second replica of the last stage has one, always from the same sender."""
    train = {"steps": 6, "warmup_steps": 4, "global_batch": 12, "clip_norm": None}
    split = {"pp": 2, "replicas": [3, 2], "schedule": "1f1b-stash", "micro_batches": 3}
    spec = RunSpec.model_validate({"model": GPT, "parallel": split, "train": train})
    expected = predict(spec)
    for said, seen in zip(expected, metered(runner, tmp_path, spec, [0.0] * 5), strict=True):
        assert seen["peak_total"] == pytest.approx(said.total, rel=0.06)


def test_a_norm_before_narrow_layers_needs_most_in_its_own_backward(runner: LocalRunner, tmp_path: Path) -> None:
    """RMSNorm computes in fp32; what an MLP narrower than the model, or attention with one key head, frees by then is
    less.
    """
    model = {**GPT, "layers": 2, "hidden": 128, "kv_heads": 1, "ffn": 96, "norm": "rmsnorm", "bias": False}
    split = {"pp": 3, "micro_batches": 4, "cuts": [4, 5]}
    assert_predicted(runner, tmp_path, model, split, "fp16", within=0.01)
