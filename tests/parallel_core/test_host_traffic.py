"""Concurrent transfers over the link between two hosts, in predicted steps whose costs are known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parallel_core.outline import outline_of
from parallel_core.profile.curves import LinksBetween
from parallel_core.schedule.ir import Kind, Op
from parallel_core.simulate.costs import Costs
from parallel_core.simulate.host_costs import HostCosts
from parallel_core.simulate.link_contention import ActiveFlows, Flow
from parallel_core.simulate.network import Where
from parallel_core.simulate.predict import predict_step
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core.tables import table
from tests.parallel_core.test_link_contention import flow, seconds, through, timed
from tests.parallel_core.test_network import BATCH, FAR_BYTE_S, FAR_S, MODEL, between, spec

SLOW_BYTE_S = 4e-7
"""Seconds per byte between hosts, so slow that stages which finish at different times still reduce concurrently."""
BOTH_WAYS = {("a", "b"): 1, ("b", "a"): 1}
TIED = ModelSpec(**{**MODEL.model_dump(), "tied": True})


def free() -> LinksBetween:
    """A link with slow bytes on which two concurrent sends take as long as one."""
    known = between("a", "b", FAR_S, SLOW_BYTE_S)
    alone = next(link for link in known.links if (link.what, link.hosts) == ("send", 2))
    return known.model_copy(update={"links": (*known.links, alone.model_copy(update={"ranks": 4}))})


def reductions(known: LinksBetween) -> list[tuple[float, float]]:
    """(begin, end) in seconds of the all-reduce of each of the two stages, whose replicas are on different hosts."""
    run = spec(dp=2, pp=2, micro_batches=2)
    spans = predict_step(run, table(MODEL), where=Where(["a", "b", "a", "b"], (known,))).spans
    found = []
    for stage in range(2):
        rows = next(rows for rows in spans.values() if (rows["stage"] == stage).any())
        (row,) = rows[rows["kind"] == Kind.ALLREDUCE]
        found.append((row["start"] / 1e9, row["end"] / 1e9))
    return found


def test_a_message_has_the_bytes_of_its_sender_on_both_ends() -> None:
    costs = HostCosts(Costs({}), messages={(1, Kind.SEND_ACT): (5, 100), (3, Kind.SEND_GRAD): (7, 200)})
    ends = [(Kind.SEND_ACT, 1), (Kind.RECV_ACT, 2), (Kind.SEND_GRAD, 3), (Kind.RECV_GRAD, 2), (Kind.F, 1)]
    assert [costs.bytes_of(Op(kind, stage, 0)) for kind, stage in ends] == [100, 100, 200, 200, 0]


def test_ranks_of_one_collective_are_on_the_line_once() -> None:
    active = ActiveFlows()
    for rank in range(3):
        active.put(rank, Flow(BOTH_WAYS, 100.0, 0.0, (), ("data", 0)))
    assert [at for _, at in through(active)] == [100.0] * 3
    for stage in range(2):
        for rank in range(3):
            active.put((stage, rank), Flow(BOTH_WAYS, 100.0, 0.0, (), ("data", stage)))
    assert [at for _, at in through(active)] == [200.0] * 6


def test_a_message_and_a_collective_share_the_line_that_both_go_over() -> None:
    active = ActiveFlows()
    active.put("sum", Flow(BOTH_WAYS, 100.0, 0.0))
    active.put("back", flow(30.0, line=("b", "a")))
    assert through(active) == [("back", 60.0), ("sum", 130.0)]


def test_stages_that_reduce_at_once_share_the_line() -> None:
    """The last stage starts first. Once the first stage starts, too, both transfer at half speed until the one with
    less left is done; the other one is done when the link has moved all bytes of both.
    """
    (begin, apart), (begin_last, apart_last) = reductions(free())
    (same, end), (same_last, end_last) = reductions(between("a", "b", FAR_S, SLOW_BYTE_S))
    assert (same, same_last) == pytest.approx((begin, begin_last)) and begin_last < begin < apart_last - FAR_S
    left, left_last = apart - FAR_S - begin, apart_last - FAR_S - begin
    order = sorted([left, left_last])
    expected = {order[0]: begin + 2 * order[0], order[1]: begin + order[0] + order[1]}
    assert end - FAR_S == pytest.approx(expected[left], abs=1e-8)
    assert end_last - FAR_S == pytest.approx(expected[left_last], abs=1e-8)
    assert end > apart + 1e-3 and end_last > apart_last + 1e-3


def test_a_collective_alone_takes_what_was_timed() -> None:
    apart = ["a", "b"]
    for split in ({"dp": 2}, {"dp": 2, "zero": 1}, {"dp": 2, "zero": 3}, {"tp": 2}):
        assert seconds(between("a", "b"), apart, **split) == seconds(timed(1.0), apart, **split)


def test_replicas_of_each_tensor_rank_reduce_at_once() -> None:
    """One tensor group on each host: two concurrent all-reduces over one link, each of half of the matrices."""
    shared, apart, half = (seconds(known, dp=2, tp=2) for known in (between("a", "b"), timed(1.0), timed(1.5)))
    outline = outline_of(MODEL)
    own = 4 * sum(sum(cost.parameters) for cost in outline.costs(spec(dp=2, tp=2)))
    assert shared - apart == pytest.approx(own * FAR_BYTE_S, rel=0.05)
    assert half - apart == pytest.approx((shared - apart) / 2, rel=1e-3)


def test_tensor_groups_of_several_replicas_share_the_line() -> None:
    """The two tensor ranks of each replica are on different hosts, and both replicas communicate concurrently."""
    shared, apart = (seconds(known, ["a", "b"] * 2, dp=2, tp=2) for known in (between("a", "b"), timed(1.0)))
    each = 4 * BATCH / 2 * FAR_BYTE_S
    assert shared - apart == pytest.approx(2 * len(MODEL.units()) * each, rel=1e-3)


def test_gathers_of_parameters_at_the_optimizer_share_the_line() -> None:
    """With ZeRO-1 and one tensor group on each host, both tensor ranks' replicas reduce gradients and gather
    parameters.
    """
    summed, gathered = (
        [seconds(known, dp=2, tp=2, zero=zero) for known in (between("a", "b"), timed(1.0))] for zero in (0, 1)
    )
    assert gathered[0] - gathered[1] == pytest.approx(2 * (summed[0] - summed[1]), rel=0.05)


def tied(model: ModelSpec, known: LinksBetween, hosts: Sequence[str]) -> float:
    given = {"model": model.model_dump(), "parallel": {"dp": 2, "pp": 2}, "train": {"global_batch": BATCH, "steps": 5}}
    return predict_step(RunSpec.model_validate(given), table(model), where=Where(hosts, (known,))).seconds


def test_what_the_ends_of_several_pipelines_share_is_summed_at_once() -> None:
    """Both replicas' first stages are on a, their last ones on b: besides the messages there are two reductions of the
    tied embedding.
    """
    hosts = ["a", "a", "b", "b"]
    more = [tied(model, between("a", "b"), hosts) - tied(model, timed(1.0), hosts) for model in (TIED, MODEL)]
    assert more[0] - more[1] == pytest.approx(4 * MODEL.vocab * MODEL.hidden * FAR_BYTE_S, rel=0.01)
