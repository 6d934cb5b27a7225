"""Messages that share the link between two hosts: on their own and in a step, compared with values calculated by
hand.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parallel_core.profile.curves import Link, LinksBetween
from parallel_core.simulate.link_contention import ActiveFlows, Flow, Line
from parallel_core.simulate.network import Where
from parallel_core.simulate.predict import predict_step
from tests.parallel_core.tables import curve, table
from tests.parallel_core.test_network import BATCH, FAR_BYTE_S, FAR_S, MODEL, between, network, spec

LINE: Line = ("a", "b")
HOSTS = ["a", "a", "b", "b"]


def flow(transfer: float, streams: int = 1, line: Line = LINE, known: Sequence[tuple[int, float]] = ()) -> Flow:
    return Flow({line: streams}, transfer, 7.0, tuple(known))


def through(active: ActiveFlows) -> list[tuple[object, float]]:
    """(name, ns from now) of each transfer in progress, in order of completion."""
    clock, found = 0.0, []
    while active:
        step = active.soonest()
        clock += step
        found += [(what, clock) for what, _ in active.advance(step)]
    return found


def test_what_is_alone_takes_its_time() -> None:
    active = ActiveFlows()
    active.put("one", flow(100.0))
    assert active.soonest() == 100.0 and active.advance(40.0) == []
    assert active.soonest() == 60.0 and active.advance(60.0) == [("one", 7.0)] and not active


def test_two_on_one_line_share_it_while_both_are_there() -> None:
    """One of 100 ns, and at 50 another of 100 ns: both at half speed until 150, when the first is done; then 50 ns are
    left.
    """
    active = ActiveFlows()
    active.put("one", flow(100.0))
    active.advance(50.0)
    active.put("two", flow(100.0))
    assert through(active) == [("one", 100.0), ("two", 150.0)]


def test_the_way_back_and_other_hosts_are_lines_of_their_own() -> None:
    active = ActiveFlows()
    for line in (LINE, ("b", "a"), ("a", "c")):
        active.put(line, flow(100.0, line=line))
    assert [at for _, at in through(active)] == [100.0] * 3


def test_a_tensor_group_sends_as_many_as_it_has_ranks() -> None:
    """Three streams in all: the two of the group and the one of the single rank each get a third of the bandwidth."""
    active = ActiveFlows()
    active.put("group", flow(100.0, streams=2))
    active.put("rank", flow(40.0))
    assert through(active) == [("rank", 120.0), ("group", 240.0)]  # 60 left for each of two streams: 120 more


def test_what_was_timed_says_how_much_slower_several_are() -> None:
    known = ((2, 1.2), (4, 2.0))
    found = [flow(1.0, known=known).slower(streams) for streams in (1, 2, 3, 4, 8)]
    assert found == pytest.approx([1.0, 1.2, 1.6, 2.0, 4.0])
    assert [flow(1.0).slower(streams) for streams in (1, 3)] == [1.0, 3.0]


def timed(slower: float) -> LinksBetween:
    """A link on which each of two concurrent sends takes `slower` times as long as alone, apart from its latency."""
    two = {"what": "send", "ranks": 4, "hosts": 2, "time": curve(FAR_S, slower * FAR_BYTE_S)}
    known = between("a", "b")
    return known.model_copy(update={"links": (*known.links, Link.model_validate(two))})


def seconds(known: LinksBetween, hosts: Sequence[str] = HOSTS, **parallel: object) -> float:
    return predict_step(spec(**parallel), table(MODEL), where=Where(hosts, (known,))).seconds


def test_replicas_that_send_at_once_wait_for_each_other() -> None:
    """Both first stages are on a, both second ones on b, with one micro-batch each. Activations and the gradients
    coming back are on the critical path, and take twice their transfer time, or the measured factor.
    """
    transfer = 4 * BATCH / 2 * MODEL.seq * MODEL.hidden * FAR_BYTE_S
    shared, free, timed_so = (seconds(known, dp=2, pp=2) for known in (between("a", "b"), timed(1.0), timed(1.5)))
    assert shared - free == pytest.approx(2 * transfer, rel=1e-3)
    assert timed_so - free == pytest.approx(transfer, rel=1e-3)


def test_replicas_that_are_on_a_host_each_share_nothing() -> None:
    """Ranks are numbered stage by stage: a and b each hold one replica of both stages, so no message leaves a host."""
    apart = ["a", "b", "a", "b"]
    assert seconds(between("a", "b"), apart, dp=2, pp=2) == seconds(timed(1.0), apart, dp=2, pp=2)
    assert network(apart, [between("a", "b")], dp=2, pp=2).flow(0, 1, 1e6) is None


def test_the_line_of_a_message_is_that_of_its_own_ranks() -> None:
    made = network(HOSTS, [timed(1.5)], tp=2, pp=2)
    found = made.flow(0, 1, 1e6)
    assert found is not None and found.lines == {("a", "b"): 2}
    assert (found.transfer, found.latency) == (pytest.approx(1e15 * FAR_BYTE_S), pytest.approx(1e9 * FAR_S))
    assert found.known == ((2, pytest.approx(1.5)),)
    back = made.flow(1, 0, 1e6)
    assert back is not None and back.lines == {("b", "a"): 2}
