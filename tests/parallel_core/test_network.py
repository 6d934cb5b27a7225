"""Predicted steps of runs over several hosts, from tables with known costs; expected values are calculated by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parallel_core.layout import Layout
from parallel_core.outline import outline_of
from parallel_core.plan.alpa.costs import Measured
from parallel_core.plan.peak import places_of
from parallel_core.plan.units import unit_costs
from parallel_core.profile.curves import Link, LinksBetween, What
from parallel_core.profile.table import CostTable
from parallel_core.simulate.cost_requirements import CannotPredict
from parallel_core.simulate.network import Network, Where
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core.tables import ALPHA_S, BYTE_S, curve, table

BATCH = 48
MODEL = ModelSpec(layers=4, hidden=32, seq=16, vocab=64)
FAR_S, FAR_BYTE_S, NEAR_S = 3e-3, 2e-8, 7e-4
WHATS: tuple[What, ...] = ("all_reduce", "all_gather", "reduce_scatter", "send")


def spec(**parallel: object) -> RunSpec:
    return RunSpec.model_validate(
        {"model": MODEL.model_dump(), "parallel": parallel, "train": {"global_batch": BATCH, "steps": 5}}
    )


def between(first: str, second: str, alpha: float = FAR_S, beta: float = FAR_BYTE_S) -> LinksBetween:
    """A link between two hosts with two ranks each; a message inside a host over the same transport costs NEAR_S."""
    far = [Link.model_validate({"what": what, "ranks": 2, "hosts": 2, "time": curve(alpha, beta)}) for what in WHATS]
    near = Link.model_validate({"what": "send", "ranks": 2, "time": curve(NEAR_S, BYTE_S)})
    return LinksBetween(hosts=(first, second), device="cpu", software="made up", links=(*far, near))


def predicted(hosts: Sequence[str] = (), known: CostTable | None = None, **parallel: object) -> float:
    where = Where(hosts, (between("a", "b"),) if hosts else ())
    return predict_step(spec(**parallel), known or table(MODEL), where=where).seconds


def network(hosts: Sequence[str], found: Sequence[LinksBetween], **parallel: object) -> Network:
    return Network(Layout.of(spec(**parallel)), table(MODEL), hosts, found)


def test_replicas_on_two_hosts_sum_their_gradients_at_the_pace_between_them() -> None:
    """The only difference: one all-reduce and the gather of the norm go between hosts instead of inside one."""
    gradients = 4 * sum(sum(cost.parameters) for cost in outline_of(MODEL).costs(spec()))
    apart, together = predicted(["a", "b"], dp=2), predicted(dp=2)
    reduced = FAR_S - ALPHA_S + gradients * (FAR_BYTE_S - BYTE_S)
    assert apart - together == pytest.approx(reduced + FAR_S - ALPHA_S, rel=0.01)


def test_sums_that_go_over_the_wire_while_backward_works_cost_nothing() -> None:
    """For a model of several MiB and a fast link, what remains are the pieces of the first block and of the embedding,
    minus the time of the embedding's own backward.
    """
    large = ModelSpec(layers=4, hidden=256, heads=4, seq=16, vocab=64)
    run = RunSpec.model_validate({"model": large, "parallel": {"dp": 2}, "train": {"global_batch": BATCH, "steps": 5}})
    costs, known = unit_costs(run), table(large)
    *_, block, embedding = places_of(run, costs, [range(len(costs))]).pieces(4)
    one_sample = known.of(1, "none", 1)[0].seconds["backward"]

    def step(beta: float) -> float:
        return predict_step(run, known, where=Where(["a", "b"], (between("a", "b", 0.0, beta),))).seconds

    beta = BATCH / 2 * sum(one_sample) / 100 / (4 * block.start)
    left = 4 * (embedding.stop - block.start) * beta - BATCH / 2 * one_sample[0]
    assert step(beta) - step(0.0) == pytest.approx(left, rel=0.02)


def test_a_pipeline_over_two_hosts_pays_for_the_way_between_them() -> None:
    """With one micro-batch, its message and the gradient coming back are on the critical path."""
    size = 4 * BATCH * MODEL.seq * MODEL.hidden
    apart, together = predicted(["a", "b"], pp=2), predicted(pp=2)
    there = FAR_S - ALPHA_S + size * (FAR_BYTE_S - BYTE_S)
    assert apart - together == pytest.approx(2 * there + FAR_S - ALPHA_S, rel=0.01)


def test_devices_of_another_host_slow_nobody_down() -> None:
    slow = table(MODEL, slower=2.0, links=[{"what": what, "ranks": 2, "time": curve(0, 0)} for what in WHATS])
    free = Where(["a", "b"], (between("a", "b", 0.0, 0.0),))
    apart = predict_step(spec(dp=2), slow, where=free).seconds
    assert apart == pytest.approx(predict_step(spec(dp=2), slow).seconds / 2, rel=1e-6)


def test_a_tensor_group_over_two_hosts_pays_for_every_collective() -> None:
    layers = len(MODEL.units())
    apart, together = predicted(["a", "b"], tp=2), predicted(tp=2)
    each = FAR_S - ALPHA_S + 4 * BATCH * (FAR_BYTE_S - BYTE_S)
    assert apart - together == pytest.approx(2 * layers * each + FAR_S - ALPHA_S, rel=0.01)


def test_a_stage_that_does_not_leave_its_host_still_sends_as_its_pipeline_does() -> None:
    """Four stages, two per host: only one boundary is between hosts, but none of the pipeline's messages uses shared
    memory.
    """
    over, inside = (
        network(["a", "a", "b", "b"], [between("a", "b")], pp=4, micro_batches=4).route(*at, 0.0)
        for at in ((1, 2), (0, 1))
    )
    assert over is not None and over.time.at(0) == FAR_S
    assert inside is not None and inside.time.at(0) == NEAR_S
    alone = network(["a", "a", "b", "b"], [between("a", "b")], dp=2, pp=2, micro_batches=2).route(0, 1, 0.0)
    assert alone is not None and alone.time.at(0) == FAR_S  # the first stages of both replicas are on the same host
    memory = network(["a", "a"], [], pp=2, micro_batches=2).route(0, 1, 0.0)
    assert memory is not None and memory.time.at(0) == ALPHA_S


def test_of_several_hosts_the_slowest_pair_sets_the_pace() -> None:
    pairs = [between("a", "b"), between("a", "c", FAR_S / 2), between("b", "c", 4 * FAR_S)]
    made = network(["a", "b", "c"], pairs, dp=3)
    three = made.exchange("all_reduce", made.data(0), 0.0)
    # two rounds on a ring of three, where the measured ring of two has one
    assert three.waited and three.seconds == pytest.approx(2 * 4 * FAR_S)
    with pytest.raises(CannotPredict, match="between b and c were never timed; time them on Fleet"):
        network(["a", "b", "c"], pairs[:2], dp=3)
    with pytest.raises(CannotPredict, match=r"between a and b were never timed \(nor those of 2 more pairs"):
        network(["a", "b", "c"], [], dp=3)


def test_a_wider_ring_takes_more_turns_and_moves_more() -> None:
    made = network(["a", "a", "b", "b"], [between("a", "b")], dp=4)
    found = made.exchange("all_gather", made.data(0), 1e6).seconds
    assert found == pytest.approx(3 * FAR_S + 1.5 * 1e6 * FAR_BYTE_S)  # 3/4 of the bytes instead of 1/2


def test_the_slowest_replica_speaks_for_all() -> None:
    """Three ranks on one host and one on another: one tensor group spans both."""
    made = network(["a", "a", "a", "b"], [between("a", "b")], dp=2, tp=2)
    assert made.tensor(0) == {(("a", 2),), (("a", 1), ("b", 1))}
    assert made.exchange("all_reduce", made.tensor(0), 0.0).seconds == FAR_S


def test_hosts_of_a_device_each_need_no_links_inside() -> None:
    bare = table(MODEL, links=[], devices=1)
    assert predicted(["a", "b"], bare, dp=2) > 0
    with pytest.raises(CannotPredict, match="no links"):
        predicted(["a", "a"], bare, dp=2)


def test_one_host_is_what_it_was() -> None:
    assert predicted(["a", "a"], dp=2) == predicted(dp=2)


def test_what_torch_shards_is_predicted_on_one_host_alone() -> None:
    with pytest.raises(CannotPredict, match=r"on one host; over several, Trainyard.s own sharding is predicted"):
        predicted(["a", "b"], dp=2, zero=3, zero_backend="fully_shard")


@pytest.mark.parametrize(("what", "rounds"), [("all_reduce", 2), ("all_gather", 1)])
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
def test_a_ring_inside_a_host_is_scaled_to_its_ranks(what: What, rounds: int, ranks: int) -> None:
    """Links of 2 and 4 ranks were timed; those of any other number follow from the ring, in a step and in a plan."""

    def ring(n: int, size: float) -> float:
        return rounds * (n - 1) * (ALPHA_S + size / n * BYTE_S)

    sizes = [0, 1 << 20, 1 << 24]
    links = [
        {"what": what, "ranks": n, "time": {"sizes": sizes, "seconds": [ring(n, size) for size in sizes]}}
        for n in (2, 4)
    ]
    timed = table(MODEL, links=links, devices=8)
    made = Network(Layout.of(spec(dp=ranks)), timed)
    found = made.exchange(what, made.data(0), 1 << 24)
    assert found.seconds == pytest.approx(ring(ranks, 1 << 24)) and not found.waited
    priced = Measured(timed).all_reduce if what == "all_reduce" else Measured(timed).gather
    assert priced(ranks, 1 << 24) == found.seconds and priced(1, 1 << 24) == 0.0
