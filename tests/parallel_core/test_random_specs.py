"""The runs drawn at random are of every kind of model: a draw that the rules refuse is discarded without a word."""

from __future__ import annotations

from random import Random

import pytest

from parallel_core.bench import random_specs
from parallel_core.outline import KINDS
from parallel_core.outline.mlp import MlpOutline
from parallel_core.spec import RunSpec


@pytest.fixture
def flat(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more kind, which has none of the fields that others are made small by."""
    monkeypatch.setitem(KINDS, "flat", type("FlatOutline", (MlpOutline,), {"fields": ("layers", "hidden")}))


@pytest.mark.usefixtures("flat")
def test_every_kind_is_drawn_in_sizes_that_it_has() -> None:
    chance = Random(1)
    drawn = [random_specs._model(chance) for _ in range(400)]
    assert {model["kind"] for model in drawn} == set(KINDS)
    assert all(set(model) - {"kind"} <= set(KINDS[model["kind"]].fields) for model in drawn)


def test_what_is_drawn_of_a_kind_is_a_valid_model() -> None:
    chance = Random(2)
    for _ in range(200):
        RunSpec.model_validate({"model": random_specs._model(chance)})
