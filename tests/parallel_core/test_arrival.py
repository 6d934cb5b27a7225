"""When a message arrives in a predicted step: from the measured rate of messages, and from the work of both of its
ends.
"""

from __future__ import annotations

import pytest

from parallel_core.profile.curves import Link
from parallel_core.profile.table import CostTable
from parallel_core.simulate.predict import predict_step
from parallel_core.simulate.stage_costs import message_times
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core.tables import table

MODEL = ModelSpec(layers=4, hidden=32, seq=16, vocab=64)


def spec(**train: object) -> RunSpec:
    train = {"global_batch": 16, "steps": 5, **train}
    return RunSpec.model_validate({"model": MODEL.model_dump(), "parallel": {"pp": 2}, "train": train})


def link(seconds: float, work: float | None, hosts: int = 1) -> Link:
    kept = {} if work is None else {"work": {"sizes": [0], "seconds": [work]}}
    time = {"sizes": [0], "seconds": [seconds]}
    return Link.model_validate({"what": "send", "ranks": 2, "hosts": hosts, "time": time, **kept})


def known(seconds: float, work: float | None = None) -> CostTable:
    norm = {"what": "all_gather", "ranks": 2, "time": {"sizes": [0], "seconds": [0.0]}}
    return table(MODEL, links=[link(seconds, work).model_dump(mode="json"), norm])


@pytest.mark.parametrize(("work", "way"), [(None, 0.5), (0.1, 0.5), (0.4, 0.8)])
def test_a_message_between_cores_takes_what_both_of_its_ends_do_with_it(work: float | None, way: float) -> None:
    """One rank copies it into shared memory, then the other copies it out; but messages cannot arrive faster than they
    did when measured in a row.
    """
    assert message_times(spec(), known(0.5, work)) == [round(way * 1e9)]


def test_who_waits_for_a_message_waits_for_both_copies() -> None:
    """With one micro-batch, its message and the gradient coming back are on the critical path."""
    assert predict_step(spec(), known(0.5, 0.4)).seconds == pytest.approx(predict_step(spec(), known(0.8)).seconds)


def test_a_gpu_sends_beside_its_processor() -> None:
    gpus = known(0.5, 0.4).model_copy(update={"device": "cuda"})
    assert message_times(spec(device="cuda"), gpus) == [500_000_000]


def test_between_hosts_the_way_is_what_was_timed() -> None:
    assert link(0.5, 0.4).arrival(1024, 0.4) == 0.8
    assert link(0.5, 0.4, hosts=2).arrival(1024, 0.4) == 0.5
