"""A cost table adapted to what runs measured: the factor is recovered, and what it cannot explain is refused."""

from __future__ import annotations

from typing import Any

import pytest

from parallel_core.simulate.predict import predict_step
from parallel_core.simulate.recalibrate import CannotRecalibrate, errors, factor_of, scaled
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core.tables import curve, table

MODEL = ModelSpec(layers=4, hidden=32, heads=2, seq=16)
SPLITS: tuple[dict[str, Any], ...] = ({}, {"tp": 2}, {"pp": 2, "micro_batches": 4}, {"dp": 2})


def _spec(split: dict[str, Any]) -> RunSpec:
    return RunSpec.model_validate({"model": MODEL.model_dump(), "parallel": split, "train": {"global_batch": 16}})


FULL = pytest.mark.full


@pytest.mark.parametrize("slower", [pytest.param(0.5, marks=FULL), 1.0, pytest.param(1.3, marks=FULL), 3.0])
def test_a_device_that_is_slower_than_profiled_is_found_from_any_runs(slower: float) -> None:
    profiled = table(MODEL, fixed={"optimizer": {1: curve(1e-4, 1e-9)}})
    truth = scaled(profiled, slower)
    for own in (SPLITS[:1], SPLITS[1:3], SPLITS):
        runs = [(_spec(split), predict_step(_spec(split), truth).seconds) for split in own]
        factor = factor_of(profiled, runs)
        assert factor == pytest.approx(slower, rel=5e-3)
        others = [(_spec(split), predict_step(_spec(split), truth).seconds) for split in SPLITS]
        assert all(abs(error) < 5e-3 for error in errors(scaled(profiled, factor), others))


def test_only_work_is_scaled() -> None:
    profiled = table(MODEL, crowded={1: 1.5})
    twice = scaled(profiled, 2.0)
    assert twice.layers[0].whole["forward"] == 2 * profiled.layers[0].whole["forward"]
    assert twice.layers[0].seconds["input"][1] == 2 * profiled.layers[0].seconds["input"][1]
    assert twice.crowded == {1: 1.5} and twice.links == profiled.links
    assert type(twice).model_validate(twice.dump()) == twice


FULLY = {"dp": 2, "zero": 3, "zero_backend": "fully_shard"}


@pytest.mark.parametrize("devices", [1, 2])
def test_the_work_of_fully_shard_is_scaled_and_its_waiting_is_not(devices: int) -> None:
    """Two ranks are at work for 0.1 and 0.2 s each: one after the other on one device, which 0.25 and 0.5 s include."""
    row = {"ranks": 2, "forward": 0.25, "backward": 0.5, "work": 0.4}
    free = [{"what": what, "ranks": 2, "time": curve(0, 0)} for what in ("all_reduce", "all_gather", "send")]
    profiled = table(MODEL, fully_sharded=[row], devices=devices, links=free)
    (longer,) = scaled(profiled, 3.0).fully_sharded
    added = 2 * (0.1 + 0.2) * 2 / devices
    assert longer.forward + longer.backward == pytest.approx(0.75 + added)
    assert longer.work * longer.forward == pytest.approx(3 * 0.1)
    run, alone = _spec(FULLY), _spec({"dp": 2})

    def of_torch(factor: float) -> float:
        """Seconds that it adds to a step of plain replicas."""
        known = scaled(profiled, factor)
        both = [predict_step(one, known, devices=[0, 1 % devices]).seconds for one in (run, alone)]
        return both[0] - both[1]

    assert of_torch(3.0) - of_torch(1.0) == pytest.approx(added, rel=1e-3)


@pytest.mark.parametrize("factor", [0.2, 1.0, 7.0])
def test_fully_shard_that_only_works_is_scaled_as_a_whole(factor: float) -> None:
    row = {"ranks": 4, "forward": 1.0, "backward": 2.0, "work": 0.9}
    (longer,) = scaled(table(MODEL, fully_sharded=[row], devices=1), factor).fully_sharded
    assert (longer.forward, longer.backward, longer.work) == pytest.approx((factor, 2 * factor, 0.9))
    assert type(longer).model_validate(longer.model_dump()) == longer


def test_runs_that_no_device_explains_are_refused() -> None:
    profiled, spec = table(MODEL), _spec({})
    with pytest.raises(CannotRecalibrate, match="not in computing"):
        factor_of(profiled, [(spec, 100 * predict_step(spec, profiled).seconds)])
