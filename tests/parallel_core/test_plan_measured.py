"""The predicted memory peak compared with the meter's, on real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallel_core.local import LocalRunner
from parallel_core.plan.peak import predict
from parallel_core.spec import RunSpec
from tests.parallel_core.metered import assert_predicted, metered, no_kernel

PIPELINE = {"pp": 2, "micro_batches": 4}
COLUMNS = {"tp": 2, "tensor_split": "columns"}


GPT = {"layers": 3, "hidden": 64, "heads": 4, "seq": 64, "vocab": 256}
GNMT = {"kind": "gnmt", "layers": 2, "hidden": 64, "seq": 24, "vocab": 512}
LLAMA = {**GPT, "kv_heads": 2, "positions": "rope", "activation": "swiglu", "norm": "rmsnorm", "dropout": 0.1}


@pytest.mark.parametrize(
    ("split", "precision", "tied"),
    [
        ({}, "fp32", False),
        ({"recompute": "full", "micro_batches": 2}, "fp64", True),
        ({"dp": 2}, "fp32", False),
        ({"tp": 2, "recompute": "full", "micro_batches": 2}, "bf16", False),
        ({**PIPELINE, "schedule": "1f1b"}, "fp16", False),
        ({"tp": 2}, "fp32", False),
        ({**PIPELINE, "schedule": "naive"}, "fp32", False),
        ({**PIPELINE, "schedule": "gpipe"}, "fp32", True),
        pytest.param({**PIPELINE, "schedule": "1f1b"}, "fp64", False, marks=pytest.mark.full),
        ({**PIPELINE, "schedule": "1f1b", "recompute": "full", "micro_batches": 8}, "fp32", False),
        pytest.param(
            {**PIPELINE, "schedule": "gpipe", "recompute": "full", "cuts": [4]}, "fp32", False, marks=pytest.mark.full
        ),
        ({**PIPELINE, "schedule": "interleaved"}, "fp32", False),
        ({**PIPELINE, "schedule": "zb-h1"}, "fp32", False),
        ({**PIPELINE, "schedule": "zb-v"}, "fp32", True),
        pytest.param({**PIPELINE, "widths": [1, 2]}, "fp32", False, marks=pytest.mark.full),
        ({**PIPELINE, "widths": [2, 1], "schedule": "zb-h1"}, "fp32", False),
        ({**PIPELINE, "schedule": "zb-h1", "recompute": "full"}, "fp32", False),
        pytest.param(
            {**PIPELINE, "schedule": "interleaved", "recompute": "full"}, "fp32", False, marks=pytest.mark.full
        ),
    ],
)
def test_prediction_is_within_three_percent(
    runner: LocalRunner, tmp_path: Path, split: dict[str, Any], precision: str, tied: bool
) -> None:
    assert_predicted(runner, tmp_path, {**GPT, "tied": tied}, split, precision)


@pytest.mark.parametrize(
    ("split", "attention"),
    [
        pytest.param({"micro_batches": 2}, "plain", marks=pytest.mark.full),
        ({"micro_batches": 2, "recompute": "selective"}, "plain"),
        pytest.param({"tp": 2, "recompute": "selective", "recompute_layers": [0, 2]}, "plain", marks=pytest.mark.full),
        ({**PIPELINE, "recompute": "full", "recompute_layers": [1]}, "fused"),
        pytest.param({**PIPELINE, "recompute": "selective"}, "plain", marks=pytest.mark.full),
        pytest.param({"tp": 2, "sequence": True}, "fused", marks=pytest.mark.full),
        ({"tp": 2, "sequence": True, "micro_batches": 2, "recompute": "full"}, "fused"),
        ({"tp": 2, "sequence": True, "micro_batches": 2, "recompute": "selective"}, "plain"),
        pytest.param({**PIPELINE, "tp": 2, "sequence": True, "schedule": "1f1b"}, "fused", marks=pytest.mark.full),
        ({**PIPELINE, "tp": 2, "sequence": True, "schedule": "zb-h1"}, "fused"),
        pytest.param(COLUMNS, "fused", marks=pytest.mark.full),
        ({**COLUMNS, "micro_batches": 2, "recompute": "full"}, "fused"),
        pytest.param({**COLUMNS, "recompute": "selective"}, "plain", marks=pytest.mark.full),
        ({**COLUMNS, **PIPELINE, "schedule": "zb-h1"}, "fused"),
        pytest.param({**COLUMNS, **PIPELINE, "recompute": "full"}, "fused", marks=pytest.mark.full),
        pytest.param({**COLUMNS, **PIPELINE, "recompute": "selective"}, "plain", marks=pytest.mark.full),
    ],
)
def test_prediction_holds_for_what_is_not_kept_whole(
    runner: LocalRunner, tmp_path: Path, split: dict[str, Any], attention: str
) -> None:
    assert_predicted(runner, tmp_path, {**GPT, "attention": attention}, split, "fp32")


@pytest.mark.parametrize("split", [{"tp": 2}, {**PIPELINE, "recompute": "full"}, {"tp": 2, "recompute": "selective"}])
def test_prediction_holds_for_a_llama(runner: LocalRunner, tmp_path: Path, split: dict[str, Any]) -> None:
    assert_predicted(runner, tmp_path, LLAMA, split, "fp32")


@pytest.mark.parametrize(
    ("more", "split"),
    [
        pytest.param({"kv_heads": 2}, {}, marks=pytest.mark.full),
        ({"kv_heads": 2}, {"tp": 2, "sequence": True}),
        pytest.param({"kv_heads": 1}, {**PIPELINE}, marks=pytest.mark.full),
        ({"kv_heads": 2}, {**PIPELINE, "schedule": "1f1b", "early_gradients": True}),
        ({}, {**PIPELINE, "schedule": "gpipe", "early_gradients": True, "recompute": "full"}),
        ({"kv_heads": 1, "attention": "plain"}, {}),
        ({"kv_heads": 2, "attention": "plain"}, {"recompute": "selective"}),
        pytest.param({"positions": "rope"}, {}, marks=pytest.mark.full),
        pytest.param({"positions": "rope", "attention": "plain"}, {**PIPELINE}, marks=pytest.mark.full),
        pytest.param({"dropout": 0.1}, {"recompute": "full"}, marks=pytest.mark.full),
        ({"dropout": 0.1}, {**PIPELINE, "recompute": "full"}),
        pytest.param({"dropout": 0.1}, COLUMNS, marks=pytest.mark.full),
    ],
)
def test_prediction_holds_for_shared_keys_positions_and_dropout(
    runner: LocalRunner, tmp_path: Path, more: dict[str, Any], split: dict[str, Any]
) -> None:
    assert_predicted(runner, tmp_path, {**GPT, "layers": 4, **more}, split, "fp32")


@pytest.mark.parametrize(
    "model",
    [
        GNMT,
        {"kind": "vgg16", "width": 8},
        {"kind": "resnet50", "width": 8},
    ],
)
def test_prediction_holds_where_backward_is_split_and_layers_are_not_linear(
    runner: LocalRunner, tmp_path: Path, model: dict[str, Any]
) -> None:
    assert_predicted(runner, tmp_path, model, {**PIPELINE, "schedule": "zb-h1"}, "fp32")


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(
    "model",
    [
        {"kind": "vgg16", "width": 8, "dropout": 0.5},
        {"kind": "resnet50", "width": 8},
        {"kind": "mlp"},
        GNMT,
    ],
)
def test_prediction_holds_for_others(
    runner: LocalRunner, tmp_path: Path, model: dict[str, Any], recompute: str
) -> None:
    assert_predicted(runner, tmp_path, model, {**PIPELINE, "recompute": recompute}, "fp32")


@pytest.mark.parametrize("cuts", [(1,), (2, 3)])
def test_prediction_holds_for_a_convolution_that_is_a_stage(
    runner: LocalRunner, tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    """The first convolution, whose images need no gradient, and one with more output than input channels."""
    split = {**PIPELINE, "pp": len(cuts) + 1, "cuts": cuts}
    assert_predicted(runner, tmp_path, {"kind": "vgg16", "width": 8}, split, "fp32", within=0.002)


@pytest.mark.parametrize(
    ("split", "precision"),
    [
        ({"micro_batches": 2}, "fp64"),
        (PIPELINE, "bf16"),
        ({**PIPELINE, "recompute": "full"}, "bf16"),
        ({**PIPELINE, "schedule": "zb-h1"}, "bf16"),
        ({**PIPELINE, "schedule": "interleaved"}, "fp16"),
        ({"pp": 2, "schedule": "looped-bfs", "recompute": "full", "cuts": [2, 3, 4]}, "fp16"),
    ],
)
def test_prediction_holds_for_an_lstm_in_any_precision(
    runner: LocalRunner, tmp_path: Path, split: dict[str, Any], precision: str
) -> None:
    if no_kernel("gnmt", precision):
        pytest.skip("this CPU has no kernel for LSTMs in bf16")
    assert_predicted(runner, tmp_path, {**GNMT, "layers": 3}, split, precision)


def test_an_lstm_that_goes_back_by_positions_has_the_gradient_of_its_output(
    runner: LocalRunner, tmp_path: Path
) -> None:
    """Also if it is the last layer of its graph; what the attention after it saved has been freed by then."""
    assert_predicted(runner, tmp_path, GNMT, {**PIPELINE, "recompute": "full"}, "fp64", within=0.01)


@pytest.mark.parametrize("precision", ["fp64", "fp16"])
def test_prediction_counts_images_in_their_precision_and_what_norms_keep(
    runner: LocalRunner, tmp_path: Path, precision: str
) -> None:
    assert_predicted(
        runner, tmp_path, {"kind": "resnet50", "width": 8}, {**PIPELINE, "recompute": "full"}, precision, within=0.01
    )


@pytest.mark.parametrize(
    ("schedule", "precision"), [("1f1b", "bf16"), ("1f1b", "fp64"), ("1f1b-stash", "fp32"), ("1f1b-naive", "bf16")]
)
def test_images_that_are_large_beside_their_layers_are_counted_while_they_are_read(
    runner: LocalRunner, tmp_path: Path, schedule: str, precision: str
) -> None:
    """They arrive in fp32; without a flush, the batches of finished steps are still there."""
    train = {"steps": 4, "warmup_steps": 2, "global_batch": 64, "precision": precision, "clip_norm": None}
    split = {"pp": 2, "micro_batches": 8, "schedule": schedule}
    spec = RunSpec.model_validate(
        {"model": {"kind": "mlp", "image": 64, "hidden": 16}, "parallel": split, "train": train}
    )
    expected = predict(spec)
    for said, seen in zip(expected, metered(runner, tmp_path, spec, [0.0, 0.0]), strict=True):
        assert seen["peak_total"] == pytest.approx(said.total, rel=0.01)


@pytest.mark.parametrize(("schedule", "cuts"), [("gpipe", [4]), ("interleaved", [2, 4, 6])])
def test_the_gradient_that_came_is_there_while_earlier_blocks_are_made_again(
    runner: LocalRunner, tmp_path: Path, schedule: str, cuts: list[int]
) -> None:
    """A stage's last block is cut in two, so that an earlier block needs most memory."""
    split = {"pp": 2, "micro_batches": 2, "schedule": schedule, "cuts": cuts, "recompute": "full"}
    assert_predicted(runner, tmp_path, GPT, split, "fp64", within=0.01)


@pytest.mark.parametrize(
    ("schedule", "widths"),
    [
        ("zb-h2", [2, 1]),
        pytest.param("v-half", [1, 2], marks=pytest.mark.full),
        pytest.param("1f1b", [2, 1], marks=pytest.mark.full),
        ("gpipe", [1, 2]),
    ],
)
def test_a_tensor_rank_that_sends_nothing_keeps_nothing_sent(
    runner: LocalRunner, tmp_path: Path, schedule: str, widths: list[int]
) -> None:
    """A stage with one tensor rank receives from the first tensor rank of the previous or next stage only."""
    split = {"pp": 2, "micro_batches": 8, "schedule": schedule, "widths": widths, "recompute": "full"}
    assert_predicted(runner, tmp_path, {**GPT, "hidden": 32, "heads": 2}, split, "fp32", within=0.01)


@pytest.mark.parametrize(("replicas", "micro_batches"), [([2, 1], 3), ([1, 2, 1], 8)])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_replicas_that_take_turns_need_what_their_own_micro_batches_do(
    runner: LocalRunner, tmp_path: Path, replicas: list[int], micro_batches: int, recompute: str
) -> None:
    split = {"pp": len(replicas), "replicas": replicas, "micro_batches": micro_batches, "recompute": recompute}
    assert_predicted(runner, tmp_path, GPT, split, "fp32", within=0.01, batch=24)


def test_a_gradient_that_the_next_activation_proves_taken_is_let_go(runner: LocalRunner, tmp_path: Path) -> None:
    split = {"pp": 2, "micro_batches": 8, "recompute": "full"}
    assert_predicted(runner, tmp_path, {**GPT, "hidden": 32}, split, "fp32", within=0.005)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_an_embedding_alone_needs_most_in_its_only_forward(runner: LocalRunner, tmp_path: Path, schedule: str) -> None:
    """The looked-up rows, their sum with the positions, and the buffer for the gradient to come."""
    split = {"pp": 2, "cuts": [1], "schedule": schedule}
    assert_predicted(runner, tmp_path, {**GPT, "hidden": 32}, split, "fp32", within=0.005)


def test_what_a_shared_vocabulary_looks_up_is_counted(runner: LocalRunner, tmp_path: Path) -> None:
    split = {"pp": 2, "tp": 2, "schedule": "v-min", "cuts": [1, 5, 7]}
    assert_predicted(runner, tmp_path, {**GPT, "hidden": 32}, split, "bf16", within=0.01)


def test_rows_gathered_for_a_second_layer_are_let_go_by_a_core_made_again(runner: LocalRunner, tmp_path: Path) -> None:
    split = {"pp": 2, "tp": 2, "schedule": "naive", "sequence": True, "recompute": "selective"}
    assert_predicted(runner, tmp_path, {**GPT, "layers": 5, "dropout": 0.1}, split, "bf16", within=0.02)


def test_what_a_forward_without_a_graph_holds_is_counted(runner: LocalRunner, tmp_path: Path) -> None:
    """Between backwards, a layer that gathers holds its input, and its columns before and after reordering; W keeps
    this rank's columns of the gradient.
    """
    split = {**COLUMNS, **PIPELINE, "schedule": "v-min", "recompute": "full"}
    assert_predicted(runner, tmp_path, {**GPT, "layers": 4}, split, "fp16", within=0.01)


def test_a_layer_that_gathers_in_a_forward_with_its_graph_has_columns_twice(
    runner: LocalRunner, tmp_path: Path
) -> None:
    split = {**COLUMNS, **PIPELINE, "schedule": "v-half"}
    assert_predicted(runner, tmp_path, {**GPT, "layers": 4}, split, "fp32", within=0.01)


def test_an_embedding_of_16_bits_has_its_gradient_in_fp32(runner: LocalRunner, tmp_path: Path) -> None:
    split = {**PIPELINE, "micro_batches": 2, "schedule": "zb-h2", "recompute": "full", "cuts": [1]}
    assert_predicted(runner, tmp_path, {**GPT, "vocab": 4096}, split, "bf16", within=0.01)


def test_an_embedding_alone_has_its_rows_while_positions_are_added(runner: LocalRunner, tmp_path: Path) -> None:
    split = {**PIPELINE, "micro_batches": 2, "schedule": "zb-h2", "recompute": "full", "cuts": [1]}
    assert_predicted(runner, tmp_path, {**GPT, "hidden": 32}, split, "fp64", within=0.01)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.full)])
def test_norms_over_the_samples_of_all_replicas_are_counted(
    runner: LocalRunner, tmp_path: Path, precision: str
) -> None:
    split = {**PIPELINE, "dp": 2, "recompute": "full"}
    assert_predicted(runner, tmp_path, {"kind": "resnet50", "width": 8}, split, precision, within=0.01)


@pytest.mark.parametrize(
    "shards",
    [{"zero": 2}, {"zero": 3}, pytest.param({"zero": 3, "zero_backend": "fully_shard"}, marks=pytest.mark.full)],
)
@pytest.mark.parametrize(
    "more",
    [*(pytest.param(more, marks=pytest.mark.full) for more in ({}, {"micro_batches": 4})), {"recompute": "full"}],
)
def test_prediction_holds_for_an_lstm_whose_gradients_are_sharded(
    runner: LocalRunner, tmp_path: Path, more: dict[str, Any], shards: dict[str, Any]
) -> None:
    assert_predicted(runner, tmp_path, GNMT, {"dp": 2, **shards, **more}, "fp32")


@pytest.mark.full
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replicas_of_fully_shard_own_what_rows_are_left(runner: LocalRunner, tmp_path: Path, precision: str) -> None:
    """Nothing in this model is divisible by three: the last replica owns less, and all have equally large buffers."""
    split = {"dp": 3, "zero": 3, "zero_backend": "fully_shard"}
    assert_predicted(runner, tmp_path, GPT, split, precision, within=0.003, batch=24)


def test_what_comes_out_of_the_only_bucket_is_counted(runner: LocalRunner, tmp_path: Path) -> None:
    """A small model's gradients are sent in one bucket; after the first micro-batch, the reduced result is added to
    what is kept.
    """
    assert_predicted(runner, tmp_path, {"kind": "mlp"}, {"dp": 2, "zero": 2, "micro_batches": 2}, "fp32")


@pytest.mark.parametrize(
    ("layers", "split"),
    [(4, {"pp": 2, "micro_batches": 2}), (2, {"pp": 4, "schedule": "gpipe"})],
    ids=["behind other layers", "alone on its stage"],
)
def test_attention_in_sixteen_bits_makes_copies_in_its_forward(
    runner: LocalRunner, tmp_path: Path, layers: int, split: dict[str, Any]
) -> None:
    """The peak of the stage that ends with it was predicted 4 and 18 % too low: in fp32 there are states, scaled and
    not, weights, and the context, which are rounded then. The original of an input that is saved as a copy is held
    meanwhile, which a decoder layer alone on its stage counted twice (8 % too high).
    """
    model = {**GNMT, "layers": layers, "hidden": 96}
    assert_predicted(runner, tmp_path, model, split, "fp16", within=0.006, batch=48)


@pytest.mark.parametrize(
    ("dropout", "split", "precision"),
    [
        (0.0, {"pp": 4, "micro_batches": 4}, "fp32"),
        (0.1, {"pp": 4, "micro_batches": 4}, "fp32"),
        (0.1, {"pp": 4, "micro_batches": 4, "recompute": "full"}, "fp32"),
        (0.0, {"pp": 2, "micro_batches": 4}, "bf16"),
        (0.0, {"dp": 2, "zero": 2}, "fp32"),
        (0.0, {"dp": 2, "zero": 3}, "fp32"),
    ],
)
def test_prediction_holds_for_an_mlp(
    runner: LocalRunner, tmp_path: Path, dropout: float, split: dict[str, Any], precision: str
) -> None:
    """A stage of its first layer alone was predicted up to 3.6 % too high, layers with dropout up to 5 % too low, and
    ZeRO-3 9 % too high."""
    model = {"kind": "mlp", "layers": 4, "hidden": 64, "dropout": dropout}
    assert_predicted(runner, tmp_path, model, split, precision, within=0.015, batch=64)
