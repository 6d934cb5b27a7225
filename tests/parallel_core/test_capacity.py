"""The largest model that fits: exact where every number of layers is tried, and close where it is extrapolated
linearly.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from parallel_core.plan.alike import of_memory
from parallel_core.plan.capacity import EXACT_UP_TO, fixed_depth, largest_layers, least_layers
from parallel_core.plan.memory import worst_stage
from parallel_core.plan.peak import by_stage
from parallel_core.spec import RunSpec, TrainSpec

MODEL = {"layers": 4, "hidden": 64, "heads": 4, "seq": 64, "vocab": 256}
SPLITS: tuple[dict[str, Any], ...] = (
    {},
    {"dp": 2},
    {"tp": 2},
    {"pp": 2, "micro_batches": 4, "schedule": "gpipe"},
    {"pp": 2, "micro_batches": 4},
    {"pp": 2, "micro_batches": 4, "recompute": "full"},
    {"pp": 4, "micro_batches": 4},
)


def spec(split: dict[str, Any], layers: int = 4) -> RunSpec:
    data = {"model": {**MODEL, "layers": layers}, "parallel": split, "train": {"global_batch": 16}}
    return RunSpec.model_validate(data)


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("layers", (4, 7, 33))
def test_it_finds_the_count_that_just_fits(split: dict[str, Any], layers: int) -> None:
    limit = worst_stage(spec(split, layers)).total
    found = largest_layers(spec(split), limit)
    assert worst_stage(spec(split, found)).total <= limit
    assert worst_stage(spec(split, found + 1)).total > limit


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_beyond_the_exact_range_it_is_right_within_half_a_percent(split: dict[str, Any]) -> None:
    layers = 900
    assert layers > EXACT_UP_TO * spec(split).parallel.pp
    limit = worst_stage(spec(split, layers)).total
    assert largest_layers(spec(split), limit) == pytest.approx(layers, rel=0.005)


def test_nothing_fits_where_one_layer_is_too_much() -> None:
    assert largest_layers(spec({}), 1000) == 0


def test_fewer_layers_than_the_chosen_ones_recompute_those_that_exist() -> None:
    chosen = spec({"recompute": "full", "recompute_layers": [0, 3]})
    first, small = spec({"recompute": "full", "recompute_layers": [0]}, 2), worst_stage(spec({}, 2)).total
    assert largest_layers(chosen, worst_stage(first).total) == 2
    assert worst_stage(first).total < small


def test_own_cuts_do_not_bind_a_larger_model() -> None:
    split = {"pp": 2, "micro_batches": 4}
    cut = spec({**split, "cuts": [3]})
    limit = worst_stage(spec(split, 33)).total
    assert largest_layers(cut, limit) == largest_layers(spec(split), limit)


DEEP = ({"kind": "mlp", "hidden": 64}, {"kind": "gnmt", "hidden": 32, "seq": 16, "vocab": 64})


@pytest.mark.parametrize("model", DEEP, ids=lambda model: model["kind"])
@pytest.mark.parametrize(
    "split", [{}, {"dp": 2, "zero": 1}, {"pp": 4, "micro_batches": 4, "recompute": "full"}], ids=str
)
def test_every_kind_with_a_layer_count_has_a_largest_one(model: dict[str, Any], split: dict[str, Any]) -> None:
    def of(layers: int) -> RunSpec:
        data = {"model": {**model, "layers": layers}, "parallel": split, "train": {"global_batch": 16}}
        return RunSpec.model_validate(data)

    assert fixed_depth(of(8).model) == ""
    assert of(least_layers(of(8))).parallel.stages == of(8).parallel.stages, (
        "the fewest layers are enough for its stages"
    )
    for layers in (7, 12):
        limit = worst_stage(of(layers)).total
        found = largest_layers(of(8), limit)
        assert worst_stage(of(found)).total <= limit < worst_stage(of(found + 1)).total


@pytest.mark.parametrize("kind", ["gpt", "mlp", "gnmt"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5, 6, 7])
def test_the_fewest_layers_are_those_of_which_one_less_leaves_a_stage_empty(kind: str, stages: int) -> None:
    """A GPT of one layer has four units: embedding, attention, MLP and output layer."""

    def of(layers: int) -> RunSpec:
        return RunSpec.model_validate({"model": {"kind": kind, "layers": layers}, "parallel": {"pp": stages}})

    least = least_layers(of(8))
    assert largest_layers(of(8), worst_stage(of(least)).total) >= least
    if least > 1:
        with pytest.raises(ValidationError):
            of(least - 1)


@pytest.mark.parametrize("kind", ["vgg16", "resnet50"])
def test_a_kind_of_fixed_depth_says_what_can_be_varied(kind: str) -> None:
    said = fixed_depth(RunSpec.model_validate({"model": {"kind": kind}}).model)
    assert said.startswith(f"a {kind} model has no layer count, its depth is fixed; vary width, image")


OTHER: dict[str, Any] = {
    "warmup_steps": 1,
    "lr": 1e-2,
    "lr_schedule": "cosine",
    "lr_warmup_steps": 2,
    "lr_final": 0.5,
    "eval_every": 2,
    "eval_samples": 5,
    "weight_decay": 0.5,
    "beta1": 0.5,
    "beta2": 0.5,
    "eps": 1e-3,
    "clip_norm": None,
    "clip": "stage",
    "seed": 8,
    "loss_scale": 2.0,
    "loss_scale_window": 3,
    "loss_scale_growth": 3.0,
    "loss_scale_backoff": 0.25,
    "corpus": "pattern",
    "weights": "mine",
    "checkpoint_every": 5,
    "keep": 3,
    "max_minutes": 5.0,
    "stop_on_nan": False,
    "other_data": True,
}
"""Another value of each field of `train` that no prediction of memory depends on."""


def test_every_field_of_train_is_known_to_change_the_memory_or_not() -> None:
    matters = {"steps", "global_batch", "precision", "device", "deterministic", "optimizer", "momentum"}
    unknown = sorted((set(TrainSpec.model_fields) - set(OTHER)) ^ matters)
    said = "if no memory depends on it, add it to plan/alike.py, and another value of it to OTHER; else to `matters`"
    assert not unknown, f"{', '.join(unknown)}: {said}"


@pytest.mark.parametrize(
    ("split", "schedule"),
    [*((split, None) for split in SPLITS), ({"dp": 2, "zero": 3}, None), (SPLITS[4], "1f1b-stash")],
)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_specs_that_need_the_same_memory_are_predicted_as_one(
    split: dict[str, Any], schedule: str | None, precision: str
) -> None:
    first = spec(split)
    own = first.train.model_copy(update={"precision": precision, "steps": 3})
    scheduled = first.parallel.model_copy(update={"schedule": schedule or first.parallel.schedule})
    first = first.model_copy(update={"train": own, "parallel": scheduled})
    more = OTHER | ({"steps": 300} if first.parallel.flushes else {})
    other = first.model_copy(update={"train": first.train.model_copy(update=more)})
    assert by_stage(first) == by_stage(other)
    assert of_memory(first) == of_memory(other) != of_memory(spec({"pp": 4, "micro_batches": 2}))
