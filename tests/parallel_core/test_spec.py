"""RunSpec: which combinations are valid, and the messages for those that are not."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from parallel_core.field_names import _ELSEWHERE, _OURS, sections
from parallel_core.rules import divisors
from parallel_core.schedule.traits import ScheduleName
from parallel_core.spec import ModelSpec, RunSpec, field_errors
from tests.parallel_core.strategies import run_specs


def errors(**rooms: Any) -> dict[str, str]:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate(rooms)
    return field_errors(caught.value)


def test_defaults_are_valid() -> None:
    spec = RunSpec()
    assert (spec.parallel.world, spec.micro_batch_size, spec.tokens_per_step, spec.timed_steps) == (1, 16, 2048, 40)


def test_units_of_a_model() -> None:
    assert ModelSpec(layers=2).units() == [
        "embed",
        "block.0.attn",
        "block.0.mlp",
        "block.1.attn",
        "block.1.mlp",
        "head",
    ]


@pytest.mark.parametrize(
    ("rooms", "field", "message"),
    [
        (
            {"model": {"heads": 8, "hidden": 64}, "parallel": {"tp": 3}},
            "parallel.tp",
            "tp=3 does not divide heads=8; try 1, 2, 4, 8.",
        ),
        (
            {"model": {"vocab": 250}, "parallel": {"tp": 4}},
            "parallel.tp",
            "tp=4 does not divide vocab=250; try 1, 2.",
        ),
        (
            {"model": {"hidden": 100, "heads": 3}},
            "model.heads",
            "heads=3 does not divide hidden=100; try heads=1, 2, 4, 5, 10, 20.",
        ),
        (
            {"train": {"weights": "../tiny"}},
            "train.weights",
            "Must be a name, not a path: at most 64 letters, digits, '.', '_' and '-', the first a letter or digit; "
            "got '../tiny'.",
        ),
        (
            {"model": {"layers": 1}, "parallel": {"pp": 5}},
            "parallel.pp",
            "pp=5 is more than the model's 4 cuttable layers; use at most 4.",
        ),
        (
            {"parallel": {"pp": 2, "cuts": [2, 3]}},
            "parallel.cuts",
            "pp=2 needs 1 cut, got 2; leave cuts empty, and they are balanced.",
        ),
        (
            {"parallel": {"pp": 3, "cuts": [2]}},
            "parallel.cuts",
            "pp=3 needs 2 cuts, got 1; leave cuts empty, and they are balanced.",
        ),
        (
            {"parallel": {"pp": 2, "schedule": "1f1b", "chunks": 2}},
            "parallel.chunks",
            "chunks=2 does not fit schedule=1f1b; use 1, or leave it empty.",
        ),
        (
            {"parallel": {"chunks": 2}},
            "parallel.chunks",
            "chunks=2 needs a pipeline; leave it empty.",  # a pipeline with 1f1b has one chunk per rank
        ),
        (
            {"model": {"kind": "mlp"}, "parallel": {"recompute": "selective"}},
            "parallel.recompute",
            "recompute=selective recomputes the core of attention, and kind=mlp has none; use full or none.",
        ),
        (
            {"parallel": {"recompute_layers": [0]}},
            "parallel.recompute_layers",
            "recompute=none has no layers to choose; use full or selective, or leave recompute_layers empty.",
        ),
        (
            {"parallel": {"recompute": "full", "recompute_layers": [1, 1]}},
            "parallel.recompute_layers",
            "recompute_layers must rise strictly; got [1, 1]; try [1].",
        ),
        (
            {"parallel": {"recompute": "full", "recompute_layers": [1, 4]}},
            "parallel.recompute_layers",
            "recompute_layers=4 is no layer: they count from 0 to 3; try 0, 1, 2, 3.",
        ),
        (
            {"parallel": {"sequence": True}},
            "parallel.sequence",
            "sequence=true splits what a tensor group leaves whole, and tp=1 has no group; "
            "use tp=2 or more, or sequence=false.",
        ),
        (
            {"parallel": {"tensor_split": "columns"}},
            "parallel.tensor_split",
            "tensor_split=columns gathers columns within a tensor group, and tp=1 has no group; use tp=2 or "
            "more, or tensor_split=pairs.",
        ),
        (
            {"parallel": {"tp": 2, "tensor_split": "columns", "sequence": True}},
            "parallel.tensor_split",
            "tensor_split=columns gathers every output whole, and sequence=true keeps a rank's rows of it alone; use "
            "tensor_split=pairs, or sequence=false.",
        ),
        (
            {"model": {"seq": 7}, "parallel": {"tp": 4, "sequence": True, "micro_batches": 16}},
            "parallel.sequence",
            "tp=4 does not divide the 7 rows of a micro-batch (1 x seq=7); try seq=4, 8.",
        ),
        (
            {"parallel": {"pp": 3, "cuts": [4, 4]}},
            "parallel.cuts",
            "Cuts must rise strictly within 1 .. 9, as the model has 10 cuttable layers; got [4, 4]; try [4, 5].",
        ),
        (
            {"parallel": {"pp": 2, "cuts": [10]}},
            "parallel.cuts",
            "Cuts must rise strictly within 1 .. 9, as the model has 10 cuttable layers; got [10]; try [9].",
        ),
        (
            {"parallel": {"dp": 3}},
            "parallel.dp",
            "dp=3 does not divide global_batch=16; try 1, 2, 4, 8, 16.",
        ),
        (
            {"parallel": {"dp": 2, "micro_batches": 3}},
            "parallel.micro_batches",
            "3 micro-batches do not divide the 8 samples that a replica has of global_batch=16; try 1, 2, 4, 8.",
        ),
        (
            {"train": {"steps": 3, "warmup_steps": 3}},
            "train.steps",
            "steps=3 leaves none to time after 3 warm-up steps; use steps=4 or more, or warmup_steps=2 or fewer.",
        ),
        (
            {"train": {"steps": 1, "warmup_steps": 1}},
            "train.steps",
            "steps=1 leaves none to time after 1 warm-up step; use steps=2 or more, or warmup_steps=0.",
        ),
        (
            {"train": {"corpus": "/etc/passwd"}},
            "train.corpus",
            "Corpus must be 'stdlib', 'digits', 'django', 'blob:' and the sha256 of an uploaded text, or 'tokens:' "
            "or 'images:' and the name of a file on the worker (letters, digits, '.', '_', '-').",
        ),
    ],
)
def test_rules_name_the_field_and_what_would_be_right(rooms: dict[str, Any], field: str, message: str) -> None:
    assert errors(**rooms) == {field: message}


@pytest.mark.parametrize(
    ("split", "field", "message"),
    [
        (
            {"chunks": 1},
            "parallel.chunks",
            "chunks=1 does not fit schedule=interleaved; use 2 or more, or leave it empty.",
        ),
        (
            {"pp": 4, "chunks": 3},
            "parallel.chunks",
            "pp=4 x chunks=3 makes 12 stages, more than the model's 10 cuttable layers; use at most chunks=2 or pp=3.",
        ),
        (
            {"pp": 6},
            "parallel.chunks",
            "pp=6 x chunks=2 makes 12 stages, more than the model's 10 cuttable layers; use at most pp=5.",
        ),
        (
            {"cuts": [2]},
            "parallel.cuts",
            "pp=2 x chunks=2 needs 3 cuts, got 1; leave cuts empty, and they are balanced.",
        ),
    ],
)
def test_rules_of_several_stages_a_rank(split: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"parallel": {"pp": 2, "schedule": "interleaved", **split}})
    assert field_errors(caught.value) == {field: message}


def test_chunks_are_those_of_the_schedule_unless_given() -> None:
    def stages(**split: Any) -> int:
        return RunSpec.model_validate({"parallel": split}).parallel.stages

    assert (stages(), stages(schedule="interleaved"), stages(pp=3)) == (1, 1, 3)
    assert (stages(pp=2, schedule="interleaved"), stages(pp=2, schedule="interleaved", chunks=4)) == (4, 8)


@pytest.mark.parametrize(
    ("room", "field", "value"),
    [
        ("model", "layers", 0),
        ("model", "hidden", -8),
        ("parallel", "dp", 0),
        ("parallel", "micro_batches", 4097),
        ("parallel", "schedule", "zigzag"),
        ("train", "steps", 10**7 + 1),
        ("train", "lr", float("nan")),
        ("train", "lr", float("inf")),
        ("train", "lr", -1),
        ("train", "seed", 2**31),
        ("train", "clip_norm", 0),
        ("trace", "memory_cap", 0),
    ],
)
def test_numbers_out_of_range_are_refused_at_their_field(room: str, field: str, value: object) -> None:
    assert list(errors(**{room: {field: value}})) == [f"{room}.{field}"]


@pytest.mark.parametrize(
    ("rooms", "field", "message"),
    [
        ({"parallel": {"sequence": 1.5}}, "parallel.sequence", "True or false is needed; got 1.5."),
        ({"parallel": {"widths": "2-1"}}, "parallel.widths", "A list is needed; got '2-1'."),
        ({"train": {"lr": 1e9}}, "train.lr", "Must be at most 100; got 1000000000."),
        ({"train": {"loss_scale": 1e31}}, "train.loss_scale", "Must be at most 2^100; got 1e+31."),
        ({"train": {"lr": True}}, "train.lr", "A number is needed; got True."),
        ({"train": {"clip_norm": False}}, "train.clip_norm", "A number is needed; got False."),
        ({"model": {"kind": "mlp", "layers": True}}, "model.layers", "A number is needed; got True."),
        ({"parallel": {"pp": 2, "cuts": [True]}}, "parallel.cuts.0", "A number is needed; got True."),
        ({"inject": [{"kind": "straggler", "rank": True}]}, "inject.0.rank", "A number is needed; got True."),
        ({"train": {"corpus": 5}}, "train.corpus", "A text is needed; got 5."),
        ({"train": {"steps": "\ud800"}}, "train.steps", "Has a character that is none of Unicode's; got '\\ud800'."),
        ({"inject": [5]}, "inject.0", "An object with named fields is needed."),
    ],
)
def test_a_wrong_type_says_which_is_right(rooms: dict[str, Any], field: str, message: str) -> None:
    assert errors(**rooms) == {field: message}


@pytest.mark.parametrize("model", [[], 3, None, "gpt", {"kind": [1]}, {"kind": "llama"}], ids=str)
def test_a_model_that_is_none_is_refused_at_its_field(model: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate({"model": model})
    ((field, message),) = field_errors(caught.value).items()
    assert field in ("model", "model.kind")
    assert message.startswith(("An object", "Must be 'gpt'"))


def test_words_of_other_tools_stand_for_fields_that_there_are() -> None:
    ours = [name for kind in sections(RunSpec).values() for name in kind.model_fields]
    assert set(_ELSEWHERE) <= set(ours) and not set(_OURS) & set(ours)


@pytest.mark.parametrize("rooms", [{"model": {"path": "x"}}, {"shell": {"command": "x"}}])
def test_unknown_keys_are_refused(rooms: dict[str, Any]) -> None:
    assert list(errors(**rooms).values()) == ["There is no such field."]


@pytest.mark.parametrize(
    ("rooms", "field", "meant"),
    [
        ({"paralel": {}}, "paralel", "parallel"),
        ({"train": {"global_bach": 4}}, "train.global_bach", "train.global_batch"),
        ({"model": {"Layers": 4}}, "model.Layers", "model.layers"),
        ({"steps": 10}, "steps", "train.steps"),
        ({"model": {"lrs": 1}}, "model.lrs", "train.lr"),
        ({"parallel": {"precision": "fp64"}}, "parallel.precision", "train.precision"),
        ({"train": {"learning_rate": 1}}, "train.learning_rate", "train.lr"),
        ({"model": {"num_hidden_layers": 4}}, "model.num_hidden_layers", "model.layers"),
        ({"train": {"seq_length": 64}}, "train.seq_length", "model.seq"),
    ],
)
def test_of_an_unknown_key_the_field_that_was_meant_is_named(rooms: dict[str, Any], field: str, meant: str) -> None:
    assert errors(**rooms) == {field: f"There is no such field; use {meant}."}


def test_of_an_unknown_key_of_a_fault_all_that_it_has_are_named() -> None:
    found = errors(inject=[{"kind": "straggler", "rnk": 1}])
    assert found == {"inject.straggler.rnk": "There is no such field; use rank, factor."}


def test_the_limits_themselves_are_allowed() -> None:
    spec = RunSpec.model_validate(
        {"train": {"steps": 10**7, "global_batch": 4096}, "parallel": {"micro_batches": 4096}}
    )
    assert spec.micro_batch_size == 1


@pytest.mark.parametrize("pipeline", [1, 2])
@pytest.mark.parametrize("schedule", typing.get_args(ScheduleName))
def test_numbers_of_no_stage_are_no_numbers_of_stages(pipeline: int, schedule: str) -> None:
    split = {"pp": pipeline, "schedule": schedule, "micro_batches": 4}
    assert answer({**split, "replicas": [], "widths": []}) == answer(split)


def answer(split: dict[str, Any]) -> RunSpec | list[str]:
    try:
        return RunSpec.model_validate({"parallel": split})
    except ValidationError as error:
        return [one["msg"] for one in error.errors()]


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        RunSpec().model.layers = 5


@given(run_specs())
def test_a_spec_survives_json(spec: RunSpec) -> None:
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


@given(run_specs())
def test_a_step_holds_the_whole_batch(spec: RunSpec) -> None:
    split = spec.parallel
    assert spec.micro_batch_size * split.micro_batches * split.dp == spec.train.global_batch


@given(st.integers(1, 5000))
def test_divisors(n: int) -> None:
    assert divisors(n) == [d for d in range(1, n + 1) if n % d == 0]
