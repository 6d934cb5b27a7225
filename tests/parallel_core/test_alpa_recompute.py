"""Recomputation in Alpa's stages: what it keeps in memory, and what it takes."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_core.layout import Layout
from parallel_core.outline import outline_of
from parallel_core.plan.alpa.costs import Analytic, LayerCosts
from parallel_core.plan.alpa.inter import Mesh, Search
from parallel_core.plan.alpa.plans import with_alternatives
from parallel_core.plan.peak import by_stage
from parallel_core.plan.units import unit_costs
from parallel_core.spec import RunSpec
from tests.parallel_core.test_alpa import spec_of


@pytest.mark.parametrize("fields", [{"recompute": "full"}, {"recompute": "full", "recompute_layers": [1]}])
def test_a_recomputed_block_keeps_its_input_and_runs_forward_again(fields: dict[str, Any]) -> None:
    """The four layers between embedding and head are two blocks; a stage may begin inside of one. The second half of
    an MLP is not run again."""
    machine, plain = Analytic(1e9, 1e9, 1e9, 2), spec_of()
    spec = RunSpec.model_validate({**plain.model_dump(), "parallel": fields})
    own, other = (LayerCosts(one, machine, 4).shardings(1, 1) for one in (spec, plain))
    assert own is not None and other is not None
    units = spec.model.units()
    again = [False, "recompute_layers" not in fields, "recompute_layers" not in fields, True, True, False]
    assert [a.seconds / b.seconds for (a,), (b,) in zip(own, other, strict=True)] == pytest.approx(
        [1 + (1 / 6 if name.endswith(".mlp") else 1 / 3) * twice for name, twice in zip(units, again, strict=True)]
    )
    of_four = RunSpec.model_validate({**plain.model_dump(), "train": {"global_batch": 4}})
    kept = [
        4 * cost.boundary * (unit % 2) if again[unit] else other[unit][0].activations
        for unit, cost in enumerate(unit_costs(of_four))
    ]
    assert [sharding.activations for (sharding,) in own] == kept
    inside = Search(LayerCosts(spec, machine, 4), Mesh(1, 2), 4).given((4,), [(1, 1), (1, 1)])
    assert inside is not None and inside.stages[1].shardings[0].activations == own[3][0].activations


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(("pp", "least"), [(1, 0.99), (2, 0.94)])
def test_the_memory_of_a_stage_is_that_of_a_run(recompute: str, pp: int, least: float) -> None:
    """Equation 5 against the prediction for the run, which also counts its batch and, with stages, messages. With
    recomputation the block that a backward computes again is a large part of it."""
    parallel = {"recompute": recompute, "pp": pp, "micro_batches": 8, "schedule": "1f1b"}
    model = {"layers": 8, "hidden": 256, "heads": 4, "seq": 256, "vocab": 1024}
    run = RunSpec.model_validate({"model": model, "train": {"global_batch": 32}, "parallel": parallel})
    cuts = [units[0] for units in Layout.of(run).stage_units][1:] if pp > 1 else []
    plan = Search(LayerCosts(run, Analytic(1e9, 1e9, 1e9, 2), 4), Mesh(1, pp), 8).given(cuts, [(1, 1)] * pp)
    assert plan is not None
    for stage, known in zip(plan.stages, by_stage(run), strict=True):
        assert least < stage.memory / known.total <= 1


def test_selective_recomputation_runs_the_attention_core_again() -> None:
    machine, plain = Analytic(1e9, 1e9, 1e9, 2), spec_of()
    spec = RunSpec.model_validate({**plain.model_dump(), "parallel": {"recompute": "selective"}})
    core = plain.micro_batch_size * outline_of(spec.model).core_flops() / machine.flops
    longer = [a - b for a, b in zip(*(machine.layers(one) for one in (spec, plain)), strict=True)]
    assert longer == pytest.approx([0, core, 0, core, 0, 0])


def test_a_model_that_fits_only_with_recomputation_has_a_plan() -> None:
    plain = spec_of()
    spec = RunSpec.model_validate({**plain.model_dump(), "parallel": {"recompute": "full", "recompute_layers": [0, 1]}})
    machine = Analytic(1e9, 1e9, 1e9, 2)
    roomy = Search(LayerCosts(spec, machine, 4), Mesh(1, 1), 4).best()
    assert roomy is not None
    tight = Mesh(1, 1, roomy.stages[0].memory)
    assert Search(LayerCosts(plain, machine, 4), tight, 4).best() is None
    found = next(one.spec for one in with_alternatives(Search(LayerCosts(spec, machine, 4), tight, 4)) if one.spec)
    assert found.parallel.recompute_layers == (0, 1)
