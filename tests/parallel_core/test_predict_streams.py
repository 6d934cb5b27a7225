"""A pipeline that stays full, predicted from a cost table with known costs."""

from __future__ import annotations

import pytest

from parallel_core.plan.partition import flop_weights
from parallel_core.profile.table import CostTable
from parallel_core.schedule.ir import Kind
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import RunSpec
from tests.parallel_core.tables import FLOP_S, curve, table
from tests.parallel_core.test_predict import LINKS, MODEL, predicted


@pytest.mark.parametrize("name", ["1f1b-naive", "1f1b-stash", "1f1b-vertical", "1f1b-2bw"])
def test_a_pipeline_that_stays_full_takes_what_its_slowest_stage_takes(name: str) -> None:
    """With free links, no step waits for the previous one to drain."""
    free = table(MODEL, links=[{"what": w, "ranks": 2, "time": {"sizes": [0], "seconds": [0]}} for w in LINKS])
    stages = [FLOP_S * sum(flop_weights(MODEL)[units]) for units in (slice(0, 5), slice(5, None))]
    asked = {"pp": 2, "cuts": (5,), "micro_batches": 4}
    full = predict_step(stream(name, **asked), free)
    assert full.seconds == pytest.approx(3 * 16 * max(stages), rel=1e-6)
    assert full.seconds < 0.95 * predicted(free, **asked)
    for rows in full.spans.values():
        done = rows[rows["kind"] == Kind.BW]["micro_batch"]
        assert sorted(done) == [0, 1, 2, 3], "one step of the stream"
        assert rows["start"].min() >= 0


def test_every_update_of_a_stream_and_every_copy_of_weights_is_paid() -> None:
    fixed = {"zero": {1: curve(0.001, 0)}, "optimizer": {1: curve(0.01, 0)}, "scaled_optimizer": {1: curve(0.01, 0)}}
    known, asked = table(MODEL, fixed=fixed), {"pp": 2, "micro_batches": 4}
    plain, paid = (predict_step(stream("1f1b-stash", **asked), table_).seconds for table_ in (table(MODEL), known))
    assert 4 * 0.011 - 1e-6 <= paid - plain <= 4 * (0.011 + 0.002) + 1e-6
    once = (predict_step(stream("1f1b-2bw", **asked), table_).seconds for table_ in (table(MODEL), known))
    assert -(next(once) - next(once)) < 0.011 + 0.002 + 1e-6


def test_sums_of_squares_are_paid_with_every_update_and_their_gathering_once_a_step() -> None:
    """A profile that does not tell them apart pays both every time."""
    whole, apart = {"norm": {1: curve(0.01, 0)}}, {"norm": {1: curve(0.01, 0)}, "squares": {1: curve(0.004, 0)}}
    for name, paid in (("1f1b-stash", (0.04, 0.022)), ("1f1b-2bw", (0.01, 0.01))):
        spec = stream(name, pp=2, micro_batches=4)
        free, *both = (predict_step(spec, table(MODEL, fixed=fixed)).seconds for fixed in ({}, whole, apart))
        assert [seconds - free for seconds in both] == pytest.approx(paid, abs=1e-6)


@pytest.mark.parametrize(("name", "scaled"), [("1f1b-naive", 4), ("1f1b-stash", 4), ("1f1b-2bw", 0)])
def test_an_update_for_a_part_of_a_step_weighs_its_gradients(name: str, scaled: int) -> None:
    spec = stream(name, pp=2, micro_batches=4)
    spec = spec.model_copy(update={"train": spec.train.model_copy(update={"clip_norm": None})})
    fixed = {"optimizer": {1: curve(0, 0)}, "scaled_optimizer": {1: curve(0.01, 0)}}
    free, paid = (predict_step(spec, table(MODEL, fixed=known)).seconds for known in ({}, fixed))
    assert paid - free == pytest.approx(0.01 * scaled, abs=1e-6)


def test_replicas_of_a_stream_meet_for_each_update() -> None:
    alone, both = (
        predict_step(stream("1f1b-stash", dp=dp, pp=2, micro_batches=4), free_of(4)).seconds for dp in (1, 2)
    )
    assert both == pytest.approx(alone / 2, rel=0.05)


def free_of(devices: int) -> CostTable:
    """A table with free links between that many devices."""
    zero = {"sizes": [0], "seconds": [0]}
    return table(MODEL, devices=devices, links=[{"what": w, "ranks": n, "time": zero} for w in LINKS for n in (2, 4)])


def stream(name: str, **parallel: object) -> RunSpec:
    """A pipeline without a flush."""
    made = {"model": MODEL.model_dump(), "parallel": {"schedule": name, **parallel}}
    return RunSpec.model_validate({**made, "train": {"global_batch": 16, "steps": 40, "clip": "stage"}})
