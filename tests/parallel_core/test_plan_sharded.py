"""The predicted peak compared with the meter's, for torch's fully_shard on image models, and for ZeRO-2 with a split
backward.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallel_core.local import LocalRunner
from tests.parallel_core.metered import assert_predicted

TORCH = {"zero": 3, "zero_backend": "fully_shard"}
MLP = {"kind": "mlp"}
VGG = {"kind": "vgg16", "width": 8}


@pytest.mark.full
@pytest.mark.parametrize("recompute", ["none", pytest.param("full", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(MLP, id="mlp", marks=pytest.mark.full),
        pytest.param(VGG, id="vgg16"),
        pytest.param({"kind": "resnet50", "width": 8}, id="resnet50", marks=pytest.mark.full),
    ],
)
def test_large_layers_need_most_when_they_are_gathered_or_summed(
    runner: LocalRunner, tmp_path: Path, model: dict[str, Any], recompute: str
) -> None:
    """A gather is copied out and, in a forward, held next to the following one; gradients are reduced in a copy."""
    split = {**TORCH, "dp": 2, "recompute": recompute}
    assert_predicted(runner, tmp_path, model, split, "fp32", within=0.01, exact=["optimizer"])


@pytest.mark.parametrize("model", [MLP, pytest.param(VGG, marks=pytest.mark.full)], ids=["mlp", "vgg16"])
def test_rows_of_any_layer_are_shared_out_over_three(
    runner: LocalRunner, tmp_path: Path, model: dict[str, Any]
) -> None:
    split = {**TORCH, "dp": 3}
    assert_predicted(runner, tmp_path, model, split, "fp32", within=0.007, batch=24, exact=["optimizer"])


def test_in_sixteen_bits_a_gathered_layer_sums_its_gradients_in_them(runner: LocalRunner, tmp_path: Path) -> None:
    """There is no separate matmul result next to the sum, which has the same dtype."""
    assert_predicted(runner, tmp_path, MLP, {**TORCH, "dp": 2}, "bf16", within=0.002, exact=["optimizer"])


@pytest.mark.parametrize(
    "split",
    [
        {"schedule": "1f1b", "early_gradients": True, "recompute": "full"},
        pytest.param({"schedule": "1f1b", "early_gradients": True}, marks=pytest.mark.full),
        pytest.param({"schedule": "zb-h1"}, marks=pytest.mark.full),
        pytest.param({"schedule": "zb-v"}, marks=pytest.mark.full),
    ],
    ids=lambda split: " ".join(map(str, split.values())),
)
def test_a_b_finds_the_bucket_under_way_that_w_sent_last(
    runner: LocalRunner, tmp_path: Path, split: dict[str, Any]
) -> None:
    """Not the very last bucket: that one holds only norms here, and autograd fills it in B."""
    model = {"layers": 4, "hidden": 128, "heads": 4, "seq": 64}
    whole = {"dp": 2, "pp": 2, "micro_batches": 4, "zero": 2, **split}
    assert_predicted(runner, tmp_path, model, whole, "fp32", within=0.002, exact=["params", "optimizer"])


@pytest.mark.parametrize(
    "schedule", ["zb-h1", pytest.param("zb-v", marks=pytest.mark.full), pytest.param("v-min", marks=pytest.mark.full)]
)
def test_b_fills_the_buckets_of_convolutions(runner: LocalRunner, tmp_path: Path, schedule: str) -> None:
    """Those that share a bucket with the linear layer wait for W beside it; others are not there twice."""
    split = {"dp": 2, "pp": 2, "micro_batches": 4, "zero": 2, "schedule": schedule}
    model = {"kind": "resnet50", "width": 8}
    assert_predicted(runner, tmp_path, model, split, "fp32", within=0.04, exact=["params", "optimizer"])


def test_a_bucket_is_sent_when_the_last_product_of_sixteen_bits_has_been_added(
    runner: LocalRunner, tmp_path: Path
) -> None:
    """The bucket's share for its result is not held beside that product; the peak was predicted 7 % too high."""
    split = {"dp": 2, "micro_batches": 4, "zero": 3}
    assert_predicted(runner, tmp_path, VGG, split, "fp16", within=0.005, batch=24, exact=["optimizer"])
