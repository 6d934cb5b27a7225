"""What of a prediction is extrapolated is said; what was timed is not."""

from __future__ import annotations

import pytest

from parallel_core.simulate.beyond import beyond
from parallel_core.simulate.network import Where
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core.tables import SAMPLES, curve, table
from tests.parallel_core.test_network import between

MODEL = ModelSpec(layers=4, hidden=32, heads=4, seq=16)
LINKS = [
    {"what": what, "ranks": ranks, "time": curve(1e-4, 1e-9)} for what in ("all_reduce", "send") for ranks in (2, 4)
]
COSTS = table(MODEL, devices=4, tps=(1, 2, 4), links=LINKS)


def spec(samples: int = 16, **parallel: object) -> RunSpec:
    return RunSpec.model_validate(
        {"model": MODEL.model_dump(), "train": {"global_batch": samples}, "parallel": parallel}
    )


@pytest.mark.parametrize(
    "parallel", [{}, {"dp": 4}, {"tp": 4}, {"dp": 2, "tp": 2}, {"pp": 4, "micro_batches": 4}, {"dp": 3, "pp": 1}]
)
def test_what_was_timed_is_not_extrapolated(parallel: dict[str, int]) -> None:
    assert beyond(spec(12, **parallel), COSTS) == ()


def test_larger_micro_batches_and_groups_are_extrapolated() -> None:
    assert beyond(spec(SAMPLES[-1] + 1), COSTS) == ("micro-batches of 17 samples by those of 16",)
    wide = table(MODEL, devices=8, links=LINKS)
    assert beyond(spec(dp=8), wide) == ("messages among 8 replicas by those among 4",)
    assert beyond(spec(pp=2, replicas=[6, 1], micro_batches=16), wide) == (
        "messages among 6 replicas by those among 4",
    )
    by_torch = [{"ranks": 2, "forward": 1e-3, "backward": 2e-3}]
    sharded = spec(dp=4, zero=3, zero_backend="fully_shard")
    assert beyond(sharded, table(MODEL, devices=4, fully_sharded=by_torch)) == (
        "messages among 4 replicas by those among 2",
    )


def test_ranks_beyond_the_profiled_devices_take_turns_in_a_prediction() -> None:
    """Also where they would have devices of their own: the profile is of a host with fewer."""
    assert beyond(spec(dp=2), table(MODEL, devices=1)) == ("2 ranks of a host as taking turns on 1 profiled device",)
    apart = Where(["a", "b"], [between("a", "b")])
    assert beyond(spec(dp=2), table(MODEL, devices=1), apart) == ()


def test_groups_between_hosts_are_held_against_what_was_timed_between_hosts() -> None:
    """Four ranks were timed within a host, and two between hosts."""
    where = Where(["a", "a", "b", "b"], [between("a", "b")])
    assert beyond(spec(dp=4), COSTS) == ()
    assert beyond(spec(dp=4), COSTS, where) == ("messages among 4 replicas by those among 2",)
