"""Every refusal names its fields and a proposal. Applying the proposal removes the refusal and, where one change is
enough, breaks no other rule. No run is started.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from parallel_core import combinations
from parallel_core.outline import BUILT_IN_CORPORA, KINDS
from parallel_core.rules.checks import broken
from parallel_core.schedule.traits import CUSTOM, TRAITS
from parallel_core.spec import RunSpec
from tests.parallel_core.proposals import KINDS_OF_SPLIT, SAID, Raw, proposals, taken

DRAWS = 4000
MODEL: dict[str, list[Any]] = {
    "layers": [1, 2, 4, 6],
    "hidden": [32, 48, 64],
    "heads": [1, 2, 4, 8],
    "kv_heads": [None, 1, 2],
    "ffn": [None, 30, 64],
    "seq": [1, 2, 7, 16],
    "vocab": [4, 27, 64, 250],
    "positions": ["learned", "rope"],
    "activation": ["gelu", "swiglu"],
    "tied": [False, True],
    "width": [2, 3],
    "image": [None, 32, 64],
    "channels": [3],
    "classes": [4, 12],
}
PARALLEL: dict[str, list[Any]] = {
    "dp": [1, 2, 3, 4, 5],
    "tp": [1, 2, 3, 4],
    "pp": [1, 2, 3, 4, 6, 12],
    "schedule": [name for name in TRAITS if name != CUSTOM],
    "micro_batches": [1, 2, 3, 4, 6, 8],
    "chunks": [None, 1, 2, 3],
    "early_gradients": [True],
    "tensor_split": ["columns"],
    "sequence": [True],
    "recompute": ["selective", "full"],
    "recompute_layers": [(0,), (1, 0), (0, 9), ()],
    "zero": [1, 2, 3],
    "zero_backend": ["fully_shard"],
    "cuts": [(1,), (2, 2), (1, 3), (40,)],
    "replicas": [(1, 2), (2, 1, 1), (2, 3, 1)],
    "widths": [(1, 2), (2, 2), (2, 1, 3)],
}
TRAIN: dict[str, list[Any]] = {
    "steps": [1, 3, 4, 10],
    "warmup_steps": [0, 3, 4],
    "lr_warmup_steps": [0, 3, 9],
    "global_batch": [1, 2, 4, 5, 6, 12],
    "clip": ["stage"],
    "optimizer": ["sgd"],
    "momentum": [0.5],
    "clip_norm": [None],
    "corpus": [*BUILT_IN_CORPORA],
}
TRACE: dict[str, list[Any]] = {"profile_steps": [(2,), (3, 9)], "profile_ranks": [(0,), (1, 7)]}
FAULTS: dict[str, dict[str, list[Any]]] = {
    "straggler": {"rank": [0, 2, 7]},
    "memory_hog": {"rank": [0, 2, 7]},
    "slow_link": {"rank": [0, 0, 5], "peer": [1, 1, 2, 9]},
    "slow_group": {"axis": ["data", "tensor"]},
    "unbalanced_cut": {"stage": [0, 1, 6], "units": [1, 2]},
    "high_lr": {"step": [0, 9, 10, 99]},
    "high_scale": {},
    "flipped_bit": {"rank": [0, 1, 5], "step": [0, 99]},
}
SPLITS: list[dict[str, Any]] = [
    {},
    {"dp": 2},
    {"tp": 2},
    {"pp": 2, "micro_batches": 2},
    {"dp": 2, "pp": 2, "micro_batches": 2},
    {"pp": 2, "replicas": (2, 1), "micro_batches": 2},
    {"dp": 2, "zero": 3, "zero_backend": "fully_shard"},
]
"""Valid splits into which faults are drawn."""
TOGETHER = 0.25
"""Largest permitted share of refusals without a clean fix: related mistakes that need two changes."""


def _draw(seed: int) -> Raw | None:
    """A random spec with a valid model; None if the draw gave an invalid model."""
    random = Random(seed)

    def some(of: dict[str, list[Any]], share: float) -> dict[str, Any]:
        return {name: random.choice(values) for name, values in of.items() if random.random() < share}

    kind = random.choice(["gpt", "gpt", "gpt", *KINDS])
    sizes = {name: values for name, values in MODEL.items() if name in KINDS[kind].fields}
    raw = {"model": {"kind": kind, **some(sizes, 0.3)}, "parallel": some(PARALLEL, 0.15)}
    raw |= {"train": some(TRAIN, 0.15), "trace": some(TRACE, 0.1)}
    return raw if _broken(raw) is not None else None


def _broken(raw: Raw) -> set[tuple[str, ...]] | None:
    """The fields of each broken rule; None if a field is wrong by itself."""
    try:
        return broken(RunSpec.stored(raw))
    except ValidationError:
        return None


def _refusals(raws: Iterable[Raw]) -> Iterator[tuple[Raw, tuple[str, ...], str]]:
    """Those that are refused, with the fields and the message."""
    for raw in raws:
        try:
            RunSpec.model_validate(raw)
        except ValidationError as error:
            (told,) = error.errors()
            yield raw, tuple(told["ctx"]["fields"]), told["msg"]


@pytest.fixture(scope="module")
def refused() -> list[tuple[Raw, tuple[str, ...], str]]:
    return list(_refusals(filter(None, map(_draw, range(DRAWS)))))


def _with_a_fault() -> Iterator[Raw]:
    """Runs that are valid without their fault."""
    for seed in range(DRAWS // 10):
        random = Random(seed)
        kind = random.choice(list(FAULTS))
        fault = {"kind": kind, **{name: random.choice(values) for name, values in FAULTS[kind].items()}}
        train = {"steps": 10, "global_batch": 8, "device": random.choice(["cpu", "cpu", "cpu", "cuda"])}
        yield {"model": {"layers": 6}, "parallel": random.choice(SPLITS), "train": train, "inject": [fault]}


@pytest.fixture(scope="module")
def refused_faults() -> list[tuple[Raw, tuple[str, ...], str]]:
    return list(_refusals(_with_a_fault()))


def _called(field: str) -> list[str]:
    """How a message names `field`, with a value, or a fault."""
    room, *leaf = field.split(".")
    if room == "inject":
        return [f"{leaf[1]}=" if len(leaf) > 1 else leaf[0]]
    return [f"{name}=" for name, path in SAID.items() if path == field]


def test_a_refused_fault_names_its_fields_and_a_proposal(
    refused_faults: list[tuple[Raw, tuple[str, ...], str]],
) -> None:
    assert {fields[0].split(".")[1] for _, fields, _ in refused_faults} == {*FAULTS}
    assert any(raw["train"]["device"] == "cuda" for raw, fields, _ in refused_faults if "train.device" in fields)
    for raw, fields, message in refused_faults:
        assert list(proposals(raw, fields[0], message)), message
        problem = message.rpartition("; ")[0]
        unnamed = [field for field in fields if not any(name in problem for name in _called(field))]
        # the ranks of stages that differ are named by the field that says so
        assert not unnamed or "replicas=" in problem, f"{unnamed} in {message}"


def test_what_a_refused_fault_proposes_ends_the_refusal(
    refused_faults: list[tuple[Raw, tuple[str, ...], str]],
) -> None:
    stuck = 0
    for raw, fields, message in refused_faults:
        before, ways = _broken(raw) or set(), list(proposals(raw, fields[0], message))
        after = [_broken(taken(raw, way)) for way in ways]
        assert all(found is not None and fields not in found for found in after), f"{message} {ways} in {raw}: {after}"
        stuck += not any(found is not None and found <= before for found in after)
    assert stuck <= TOGETHER * len(refused_faults)


def test_each_names_its_fields_and_a_proposal(refused: list[tuple[Raw, tuple[str, ...], str]]) -> None:
    assert len(refused) > DRAWS / 3
    for raw, fields, message in refused:
        assert fields and list(proposals(raw, fields[0], message)), message
        for field in fields:
            leaf = field.split(".")[1]
            names = leaf, leaf.replace("_", "-").removesuffix("es"), KINDS_OF_SPLIT.get(field, leaf)
            assert any(name in message for name in names), f"{field} in {message}"


def test_a_proposal_that_is_taken_removes_it_and_makes_none(refused: list[tuple[Raw, tuple[str, ...], str]]) -> None:
    stuck = 0
    for raw, fields, message in refused:
        before, ways = _broken(raw) or set(), list(proposals(raw, fields[0], message))
        after = [_broken(taken(raw, way)) for way in ways]
        for way, found in zip(ways, after, strict=True):
            assert found is not None and fields not in found, f"{message} {way} in {raw}"
        clean = [found <= before for found in after if found is not None]
        assert all(clean) or not any(clean), f"{message} in {raw}: {list(zip(ways, after, strict=True))}"
        stuck += not any(clean)
    assert stuck <= TOGETHER * len(refused)


def test_what_one_field_spoilt_is_mended_by_what_is_proposed() -> None:
    """After one field of a valid spec was changed, there is nearly always a clean way back."""
    random, asked, stuck = Random(0), 0, 0
    for raw in filter(None, map(_draw, range(DRAWS))):
        if _broken(raw):
            continue
        room, of = random.choice([("parallel", PARALLEL), ("train", TRAIN), ("trace", TRACE)])
        leaf = random.choice(list(of))
        spoilt = taken(raw, {f"{room}.{leaf}": random.choice(of[leaf])})
        try:
            RunSpec.model_validate(spoilt)
        except ValidationError as error:
            (told,) = error.errors()
            asked += 1
            ways = list(proposals(spoilt, told["ctx"]["fields"][0], told["msg"]))
            before, after = _broken(spoilt) or set(), [_broken(taken(spoilt, way)) for way in ways]
            stuck += not any(found is not None and found < before for found in after)
    assert asked > 50
    assert stuck <= TOGETHER / 4 * asked


def _several_fields(feature: str) -> bool:
    """Whether the feature sets several fields of a model, each of which a kind without them refuses in turn."""
    return sum(leaf.startswith("model.") for leaf in combinations.FEATURES[feature]) > 1


def _refused_pairs() -> Iterator[tuple[str, Raw, tuple[str, ...], str]]:
    for pair in itertools.combinations(combinations.FEATURES, 2):
        if leaves := combinations.together(*pair):
            raw = combinations.spec_of(leaves)
            try:
                RunSpec.model_validate(raw)
            except ValidationError as error:
                (told,) = error.errors()
                if "has no field" in told["msg"] and any(map(_several_fields, pair)):
                    continue  # a way out needs several changes: the other fields of the feature go, too
                yield " + ".join(pair), raw, tuple(told["ctx"]["fields"]), told["msg"]


def test_what_the_refusal_of_a_pair_proposes_is_not_refused_again() -> None:
    for pair, raw, fields, message in _refused_pairs():
        before, ways = _broken(raw) or set(), list(proposals(raw, fields[0], message))
        assert ways, f"{pair}: {message}"
        for way in ways:
            after = _broken(taken(raw, way))
            assert after is not None and fields not in after and after <= before, f"{pair}: {message} {way}"
            assert not any(field in rule for rule in after for field in way), f"{pair}: {message} {way} leaves {after}"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (
            {"parallel": {"pp": 2, "dp": 2, "zero": 1, "schedule": "1f1b-stash"}, "train": {"clip": "stage"}},
            "use zero=0.",
        ),
        (
            {"model": {"tied": True}, "parallel": {"pp": 2, "schedule": "1f1b-stash"}, "train": {"clip": "stage"}},
            "use tied=false.",
        ),
        (
            {"parallel": {"dp": 2, "pp": 2, "zero": 3, "zero_backend": "fully_shard", "early_gradients": True}},
            "use zero=2 with zero_backend=own.",
        ),
        (
            {"parallel": {"dp": 2, "pp": 2, "zero": 3, "schedule": "1f1b-stash"}, "train": {"clip_norm": None}},
            "use zero=0.",
        ),
        (
            {"model": {"kind": "mlp"}, "parallel": {"tp": 2, "tensor_split": "columns"}},
            "use tp=1 with tensor_split=pairs.",
        ),
        (
            {
                "model": {"kind": "mlp"},
                "parallel": {"tp": 2},
                "inject": [{"kind": "straggler"}, {"kind": "slow_group", "axis": "tensor"}],
            },
            "use tp=1 with slow_group left out.",
        ),
        (
            {
                "model": {"kind": "mlp"},
                "parallel": {"tp": 2, "sequence": True},
                "inject": [{"kind": "slow_group", "axis": "tensor"}],
            },
            "use tp=1 with sequence=false and slow_group left out.",
        ),
        ({"model": {"heads": 3, "hidden": 33, "positions": "rope"}}, "try hidden=36, or positions=learned."),
        ({"model": {"heads": 3, "kv_heads": 2, "hidden": 64}}, "try heads=2, 4, 8, 16, 32, 64."),
        (
            {"train": {"steps": 4}, "trace": {"profile_steps": [1, 99]}},
            "use profile_steps=3 or less, or steps=100 or more.",
        ),
        (
            {"parallel": {"dp": 2}, "trace": {"profile_ranks": [5]}},
            "dp=2 x tp=1 x pp=1 has 2; use profile_ranks=0, 1,",
        ),
    ],
)
def test_a_proposal_is_one_that_does(raw: Raw, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate(raw)
    assert said in caught.value.errors()[0]["msg"]
