"""The name of a strategy, its ideal speedup on its devices, and the cost of recomputation."""

from __future__ import annotations

import math
from typing import Any

import pytest

from parallel_core import schedule
from parallel_core.plan import strategy
from parallel_core.plan.strategy import family, ideal_speedup, label, model_flops, recompute_share
from parallel_core.plan.units import parameter_count
from parallel_core.schedule.traits import TRAITS, flushes, takes_early_gradients
from parallel_core.spec import ModelSpec, ParallelSpec, RunSpec
from tests.parallel_core.test_plan import spec


@pytest.mark.parametrize(
    ("split", "name", "kind"),
    [
        ({}, "Single", "single"),
        ({"micro_batches": 4}, "Single x4 micro-batches", "single"),
        ({"recompute": "full"}, "Single + AR", "single"),
        ({"dp": 2}, "DP", "dp"),
        ({"dp": 4}, "DP 4", "dp"),
        ({"tp": 2, "micro_batches": 2}, "TP x2 micro-batches", "tp"),
        ({"pp": 2, "schedule": "naive", "micro_batches": 4}, "Naive layer-wise", "pp"),
        ({"pp": 2, "schedule": "gpipe"}, "PP-GPipe", "pp"),
        ({"pp": 2, "schedule": "1f1b", "recompute": "full"}, "PP-1F1B + AR", "pp"),
        ({"pp": 2, "schedule": "interleaved"}, "PP-Interleaved", "pp"),
        ({"pp": 2, "schedule": "zb-v"}, "PP-ZB-V", "pp"),
        ({"dp": 2, "tp": 2}, "DP 2 x TP 2", "combined"),
        ({"dp": 2, "tp": 2, "pp": 2, "recompute": "full"}, "DP 2 x TP 2 x PP-1F1B 2 + AR", "combined"),
    ],
)
def test_names_and_families(split: dict[str, Any], name: str, kind: str) -> None:
    assert (label(spec(**split)), family(spec(**split))) == (name, kind)


@pytest.mark.parametrize(
    ("split", "ideal"),
    [
        ({}, 1.0),
        ({"dp": 4}, 4.0),
        ({"tp": 2, "dp": 2}, 4.0),
        ({"pp": 2, "micro_batches": 4, "schedule": "gpipe"}, 2 * 4 / 5),
        ({"pp": 2, "micro_batches": 4, "schedule": "naive"}, 1.0),
        ({"pp": 2, "micro_batches": 4, "schedule": "interleaved"}, 2 * 8 / 9),
        ({"pp": 2, "micro_batches": 4, "schedule": "zb-h1"}, 2 * 12 / 13),
        ({"pp": 2, "micro_batches": 1, "schedule": "custom", "program": "0F0,0B0\n1F0,1B0"}, 1.0),
    ],
)
def test_ideal_speedups(split: dict[str, Any], ideal: float) -> None:
    assert math.isclose(ideal_speedup(spec(**split)), ideal)


@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in schedule.names() if flushes(name)])
def test_idle_times_in_closed_form_are_those_of_the_simulated_schedule(name: str, rounds: int, pp: int) -> None:
    rounds += TRAITS[name].pairs  # these need two micro-batches a stage
    split = ParallelSpec.model_validate({"pp": pp, "micro_batches": rounds * pp, "schedule": name})
    assert math.isclose(strategy.idle_share(split), strategy._simulated(strategy.alike(split)))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("name", [name for name in schedule.names() if flushes(name)])
def test_a_long_step_idles_as_a_shorter_one(name: str, early: bool) -> None:
    """Idle time is that of the whole step, simulated."""
    if early and name not in takes_early_gradients():
        return
    for pp, m in ((2, 32), (3, 39)):
        split = ParallelSpec.model_validate({"pp": pp, "micro_batches": m, "schedule": name, "early_gradients": early})
        assert math.isclose(strategy.idle_share(split), strategy._simulated(strategy.alike(split)))


@pytest.mark.parametrize(("name", "early"), [("1f1b", True), ("v-half", False), ("interleaved", False)])
@pytest.mark.parametrize("micro_batches", [48, 61, 63, 64, 95])
def test_a_deep_pipeline_idles_as_one_of_fewer_stages(
    monkeypatch: pytest.MonkeyPatch, name: str, early: bool, micro_batches: int
) -> None:
    """Just below a multiple of the stages, as anywhere: a part of a round of micro-batches counts as a part."""
    asked = {"pp": 32, "micro_batches": micro_batches, "schedule": name, "early_gradients": early}
    split = ParallelSpec.model_validate(asked)
    whole = strategy._simulated(strategy.alike(split))
    monkeypatch.setattr(strategy, "_MOST_SIMULATED", 32 * micro_batches // 2)
    assert math.isclose(strategy._shortened(split), whole, rel_tol=0.06)


@pytest.mark.full
@pytest.mark.parametrize("micro_batches", [234, 250, 255, 256])
def test_128_stages_idle_as_their_simulation(micro_batches: int) -> None:
    asked = {"pp": 128, "micro_batches": micro_batches, "schedule": "1f1b", "early_gradients": True}
    split = ParallelSpec.model_validate(asked)
    whole = strategy._simulated(strategy.alike(split))
    assert math.isclose(strategy.idle_share(split), whole, rel_tol=0.02)


def test_the_idle_time_of_an_unknown_order_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new schedule has no closed form, though its backward is one operation: here the naive one under a new name."""
    monkeypatch.setitem(TRAITS, "new", TRAITS["1f1b"]._replace(ideal_idle=False))
    monkeypatch.setitem(schedule._MAKERS, "new", schedule._MAKERS["naive"])
    split = ParallelSpec(pp=2, micro_batches=4).model_copy(update={"schedule": "new"})
    assert strategy.idle_share(split) == 1.0


def test_kinds_of_recomputation_share_one_simulation() -> None:
    split = ParallelSpec(pp=2, schedule="v-half", micro_batches=4)
    strategy._simulated.cache_clear()
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"recompute": "full"},
        {"recompute": "full", "recompute_layers": (0,)},
        {"cuts": (3,)},
    )
    assert len({strategy.idle_share(split.model_copy(update=kind)) for kind in kinds}) == 1
    assert strategy._simulated.cache_info().misses == 1


def test_recomputation_runs_two_thirds_of_the_products_of_a_forward_again() -> None:
    """The last product of a block, 4 of its 12 h^2, is left out; attention, 4 s h a position, is not."""
    deep = RunSpec.model_validate({"model": {"layers": 1000, "vocab": 4}, "parallel": {"recompute": "full"}})
    h, s = deep.model.hidden, deep.model.seq
    blocks = (16 * h**2 + 4 * s * h) / (3 * (24 * h**2 + 4 * s * h))
    assert math.isclose(recompute_share(deep), blocks, rel_tol=1e-3)
    assert math.isclose(ideal_speedup(deep), 1 / (1 + recompute_share(deep)))


def test_model_flops_are_six_per_parameter_and_token_for_a_wide_model() -> None:
    wide = ModelSpec(layers=4, hidden=4096, heads=32, seq=16, vocab=256)
    assert math.isclose(model_flops(wide, 2), 6 * parameter_count(wide) * 2 * 16, rel_tol=0.02)
