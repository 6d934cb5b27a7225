"""Layers that compute the same have one time in a profile: what they differ by is chance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from parallel_core.outline import outline_of
from parallel_core.profile.equal_layers import equal_layers, levelled
from parallel_core.profile.table import CostTable
from parallel_core.simulate.cuts import best_cuts
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core.tables import table

GPT: dict[str, Any] = {"layers": 3, "hidden": 64, "heads": 4, "seq": 32}


@pytest.mark.parametrize(
    ("model", "equal"),
    [
        (GPT, [["block.0.attn", "block.1.attn", "block.2.attn"], ["block.0.mlp", "block.1.mlp", "block.2.mlp"]]),
        ({"kind": "mlp", "layers": 3}, [["block.1.linear", "block.2.linear"]]),  # the first is as wide as a digit
        ({"kind": "vgg16"}, [["block.4.conv0", "block.4.conv1"]]),  # others widen, or a pooling follows
        (
            {"kind": "gnmt", "layers": 3, "hidden": 64, "seq": 24, "vocab": 512},
            [["block.1.encoder", "block.2.encoder"], ["block.4.decoder", "block.5.decoder"]],
        ),
    ],
    ids=["gpt", "mlp", "vgg", "gnmt"],
)
def test_layers_are_equal_that_compute_the_same(model: dict[str, Any], equal: list[list[str]]) -> None:
    made = TypeAdapter(ModelSpec).validate_python(model)
    units = outline_of(made).units()
    groups = equal_layers(made)
    assert [[units[i] for i in group] for group in groups if len(group) > 1] == equal
    assert sorted(i for group in groups for i in group) == list(range(len(units)))


@pytest.mark.parametrize("seed", [0, 3, 6])
def test_cuts_do_not_follow_what_equal_layers_took_by_chance(seed: int) -> None:
    """Of a profile beside other work equal layers took 1.3 to 4.3 ms. Cuts by such a one promise a gain, and lose."""
    split = {"pp": 2, "schedule": "zb-v", "micro_batches": 4}
    run = RunSpec.model_validate({"model": {**GPT, "layers": 6}, "parallel": split, "train": {"global_batch": 16}})
    truth = table(run.model)
    chance = np.random.default_rng(seed).uniform(0.5, 1.6, len(run.model.units()))
    rows = [row.model_dump() for row in truth.layers]
    for row in rows:
        row["seconds"] = {part: tuple(chance * seconds) for part, seconds in row["seconds"].items()}
        row["whole"] = {part: sum(seconds) for part, seconds in row["seconds"].items()}
    before = predict_step(run, truth).seconds
    gains = []
    for known in (rows, levelled(rows, run.model)):
        costs = CostTable.model_validate({**truth.model_dump(), "layers": known})
        found = best_cuts(run, costs)
        gains.append((found.before / found.seconds, before / predict_step(found.spec, truth).seconds))
    (promised, real), (levelly_promised, levelly_real) = gains
    assert promised > 1.05 and real < 0.97
    assert levelly_promised < 1.02 and levelly_real > 1


def test_what_layers_take_together_stays() -> None:
    model = RunSpec.model_validate({"model": GPT}).model
    row = {"tp": 1, "seconds": {"forward": (1.0, 2.0, 5.0, 4.0, 6.0, 6.0, 10.0, 3.0)}}
    assert levelled([row], model) == [{"tp": 1, "seconds": {"forward": (1.0, 4.0, 7.0, 4.0, 7.0, 4.0, 7.0, 3.0)}}]
