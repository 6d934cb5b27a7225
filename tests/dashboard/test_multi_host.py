"""An attempt over two hosts: it runs when both run, ends when both have ended, and reports the one true cause."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from dashboard.ages import clock
from dashboard.control import multi_host, standstill, sweeps
from dashboard.control.clocks import MOST_COUNTED_S
from dashboard.control.controller import Controller
from dashboard.fleet.models import Worker
from dashboard.runs import cancelling, selectors, services
from dashboard.runs.models import Attempt, Run, SpanChunk, State
from dashboard.runs.waiting import resting
from dashboard.runs.waiting.queue import waiting
from dashboard.runs.waiting.turns import queue_order
from tests.dashboard.fake_worker import Peer, points_frame, spans_frame, spec
from tests.dashboard.test_control import state_of, until

LEASE = 1.2 * MOST_COUNTED_S
NODES = [{"worker": "a", "devices": [0], "first_rank": 0}, {"worker": "b", "devices": [0], "first_rank": 1}]
KILLED: dict[str, Any] = {
    "outcome": "failed",
    "cause": "killed_by_signal",
    "detail": "Rank 1 was killed by signal 9 (SIGKILL).",
    "rank": 1,
}
LOST_PEER: dict[str, Any] = {
    "outcome": "failed",
    "cause": "user_code",
    "detail": "Rank 0 lost the connection to another rank.",
    "peer": True,
}


def told(worker: str, **body: Any) -> dict[str, Any]:
    return {"attempt": 1, "state": "ended", "outcome": "succeeded", "none_left": True, "sizes": {}, **body}


# Reports of the hosts, as pure functions


def test_it_is_up_when_every_host_is() -> None:
    report, everywhere = multi_host.is_up({}, NODES, "b")
    assert not everywhere
    assert multi_host.is_up(report, NODES, "b") == (report, False)  # reported twice
    assert multi_host.is_up(report, NODES, "a")[1]


def test_one_host_alone_keeps_the_report_it_always_had() -> None:
    body = told("a", sizes={"events:0": 5}, outcome="failed", detail="why")
    report = multi_host.ended({"faults": {}}, NODES[:1], "a", body)
    assert report == {"faults": {}, **body}
    assert multi_host.silent(report, NODES[:1]) == []
    assert multi_host.verdict(report, NODES[:1]) == report


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_where_no_rank_moves_the_places_on_all_hosts_stand_beside_each_other(order: tuple[str, str]) -> None:
    """A link between two hosts that drops packets: each host has the place of its own ranks alone."""
    report: dict[str, Any] = {}
    for worker in order:
        rank = "ab".index(worker)
        detail = f"No rank moved for 60 s: rank {rank} at step 7 in optimizer of stage 0."
        lines = f"Stacks.\n1f1b: operations\nrank {rank}, step 7 | >0OPT_STEP<"
        body = told(worker, outcome="failed", cause="no_progress", detail=detail, traceback=lines)
        report = multi_host.ended(report, NODES, worker, body)
    verdict = multi_host.verdict(report, NODES)
    assert verdict["cause"] == "no_progress"
    assert verdict["detail"] == (
        "No rank moved for 60 s: rank 0 at step 7 in optimizer of stage 0; rank 1 at step 7 in optimizer of stage 0."
    )
    assert verdict["traceback"].splitlines() == [
        "Stacks.",
        "1f1b: operations",
        "rank 0, step 7 | >0OPT_STEP<",
        "rank 1, step 7 | >0OPT_STEP<",
    ]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_who_only_lost_the_others_never_is_the_cause(order: tuple[str, str]) -> None:
    bodies = {
        "a": told("a", **LOST_PEER, sizes={"events:0": 3}, ran_s=9.5),
        "b": told("b", **KILLED, sizes={"events:1": 4}, ran_s=9.0),
    }
    report: dict[str, Any] = {}
    for worker in order:
        report = multi_host.ended(report, NODES, worker, bodies[worker])
    verdict = multi_host.verdict(report, NODES)
    assert (verdict["cause"], verdict["rank"]) == ("killed_by_signal", 1)
    assert verdict["sizes"] == {"events:0": 3, "events:1": 4} and verdict["ran_s"] == 9.5
    assert verdict["none_left"]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_if_each_host_only_lost_the_others_the_network_between_them_was_at_fault(order: tuple[str, str]) -> None:
    bodies = {"a": told("a", **LOST_PEER), "b": told("b", **LOST_PEER | {"detail": "Rank 1 lost it, too."})}
    report: dict[str, Any] = {}
    for worker in order:
        report = multi_host.ended(report, NODES, worker, bodies[worker])
    verdict = multi_host.verdict(report, NODES)
    assert (verdict["outcome"], verdict["cause"]) == ("failed", "worker_lost")
    assert verdict["detail"] == (
        f"{bodies[order[0]]['detail']} No rank failed by itself: the network between a and b was interrupted."
    )


def test_ranks_that_never_met_may_not_reach_each_other() -> None:
    """Their network was not interrupted: it never was there."""
    seen = "Rank 2 lost the connection to another rank before its first step in connecting."
    report = multi_host.ended({}, NODES, "a", told("a", **LOST_PEER | {"detail": seen}))
    report = multi_host.ended(report, NODES, "b", told("b", **LOST_PEER))
    detail = multi_host.verdict(report, NODES)["detail"]
    assert "or they do not reach each other" in detail and "TRAINYARD_ADDRESS" in detail


def test_of_two_causes_the_first_one_told_is_the_verdict() -> None:
    report = multi_host.ended({}, NODES, "b", told("b", outcome="interrupted", cause="interrupted"))
    report = multi_host.ended(report, NODES, "a", told("a", outcome="failed", cause="out_of_memory"))
    assert multi_host.verdict(report, NODES)["outcome"] == "interrupted"


def test_a_second_telling_of_an_end_changes_nothing() -> None:
    report = multi_host.ended({}, NODES, "b", told("b", **KILLED))
    assert multi_host.ended(report, NODES, "b", told("b"))["ends"] == report["ends"]
    assert multi_host.silent(report, NODES) == ["a"]


# Through the controller


@pytest.fixture
def peers(redis_url: str) -> tuple[Peer, Peer]:
    return Peer(redis_url, "yard-a", devices=1), Peer(redis_url, "yard-b", "boot-2", devices=1)


@pytest.fixture
def starting(peers: tuple[Peer, Peer], controller: Controller, alice: Any) -> Attempt:
    """An attempt placed on both hosts, one rank on each; neither has taken it yet."""
    run = services.submit(owner=alice, spec=spec(dp=2))
    for peer in peers:
        peer.beat()
    until(controller, lambda: all(peer.tasks() for peer in peers))
    attempt: Attempt = run.attempts.get()
    return attempt


@pytest.fixture
def attempt(peers: tuple[Peer, Peer], controller: Controller, starting: Attempt) -> Attempt:
    """The attempt, running on both hosts."""
    for peer in peers:
        peer.beat(starting.pk)
        assert state_of(starting.run) == State.STARTING
        peer.running(starting.pk)
        controller.turn()
    assert state_of(starting.run) == State.RUNNING
    return starting


def test_a_run_that_only_the_network_between_its_hosts_ended_uses_a_retry(
    peers: tuple[Peer, Peer], controller: Controller, attempt: Attempt
) -> None:
    Run.objects.update(retries_left=1)
    for peer in peers:
        peer.ended(attempt.pk, "failed", **{name: value for name, value in LOST_PEER.items() if name != "outcome"})
        controller.turn()
    (event,) = Run.objects.get(pk=attempt.run_id, retries_left=0).events.filter(kind="requeued")
    assert event.text == (
        "Rank 0 lost the connection to another rank. No rank failed by itself: the network between yard-a and yard-b "
        "was interrupted. Queued again, to start in 5 s at the earliest; this is its last retry."
    )


def test_retries_are_not_used_up_while_the_network_between_hosts_is_away(
    peers: tuple[Peer, Peer], controller: Controller, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run.objects.update(retries_left=3)
    body = {name: value for name, value in LOST_PEER.items() if name != "outcome"}
    for rest in (5, 10):
        lost = Attempt.objects.filter(run=attempt.run_id).latest("number")
        for peer in peers:
            peer.ended(lost.pk, "failed", **body)
            controller.turn()
        lost.refresh_from_db()
        assert lost.ended_at is not None
        order = queue_order()
        assert order == [lost.run_id]
        assert resting.awake(order, lost.ended_at + timedelta(seconds=rest - 1)) == []
        assert resting.awake(order, lost.ended_at + timedelta(seconds=rest)) == order
        controller._sweep()
        assert state_of(attempt.run) == State.QUEUED, "although both hosts are free"
        at = clock(lost.ended_at + timedelta(seconds=rest), timezone.now())
        said = waiting(Run.objects.get(pk=attempt.run_id)).sentence
        assert said == f"Starts at {at} UTC at the earliest, as the network between its hosts was interrupted."
        Attempt.objects.filter(pk=lost.pk).update(ended_at=lost.ended_at - timedelta(seconds=rest))

        def both() -> None:
            for peer in peers:
                peer.beat()

        until(controller, lambda: state_of(attempt.run) == State.STARTING, each=both)


def ends_ordered(peer: Peer) -> list[str]:
    return [order["kind"] for order in peer.orders() if order["kind"] in ("end", "fence", "cancel", "settled")]


pytestmark = pytest.mark.django_db


def test_it_is_placed_on_both_and_told_where_the_store_is(
    peers: tuple[Peer, Peer], controller: Controller, attempt: Attempt
) -> None:
    nodes = peers[0].tasks()[0]["nodes"]
    assert nodes == peers[1].tasks()[0]["nodes"]
    assert [(node["worker"], node["first_rank"]) for node in nodes] == [("yard-a", 0), ("yard-b", 1)]
    peers[0].say("store", {"attempt": attempt.pk, "host": "host-a", "port": 4711})
    controller.turn()
    (order,) = [order for order in peers[1].orders() if order["kind"] == "store"]
    assert (order["host"], order["port"]) == ("host-a", 4711)


def test_a_host_that_never_took_its_share_uses_no_retry(peers: tuple[Peer, Peer], redis_url: str, alice: Any) -> None:
    controller = Controller(lease=LEASE)
    run = services.submit(owner=alice, spec=spec(dp=2))
    for peer in peers:
        peer.beat()
    until(controller, lambda: all(peer.tasks() for peer in peers))
    attempt = run.attempts.get()
    until(controller, lambda: state_of(run) != State.STARTING, each=lambda: peers[0].beat(attempt.pk, step=-1))
    run.refresh_from_db()
    assert (run.state, run.detail) == (
        State.QUEUED,
        "Worker yard-b fell silent before it took the run. Queued again.",
    )


@pytest.mark.parametrize("said", ["listed", "up"])
def test_a_host_that_took_its_share_before_the_controller_began_loses_it(
    peers: tuple[Peer, Peer], controller: Controller, starting: Attempt, said: str
) -> None:
    """Also if the other host, which is alive, has listed the run to the new controller: that says nothing of this
    one."""
    peers[1].beat(*([starting.pk] if said == "listed" else []), step=-1)
    if said == "up":
        peers[1].running(starting.pk)
    peers[0].beat(starting.pk, step=-1)
    controller.turn()
    again = controller if said == "up" else Controller(lease=LEASE)
    again._lease = LEASE
    until(again, lambda: state_of(starting.run) != State.STARTING, each=lambda: peers[0].beat(starting.pk, step=-1))
    run = Run.objects.get(pk=starting.run_id)
    assert (run.state, run.detail) == (State.LOST, f"Worker yard-b sent no heartbeat for {LEASE:.0f} s.")


def test_a_worker_that_says_so_gets_no_part_of_it(peers: tuple[Peer, Peer], controller: Controller, alice: Any) -> None:
    run = services.submit(owner=alice, spec=spec(dp=2))
    peers[0].beat()
    peers[1].beat(across_hosts=False)
    controller.turn()
    controller.turn()
    assert state_of(run) == State.QUEUED and [worker.across_hosts for worker in Worker.objects.all()] == [True, False]
    peers[1].beat()
    until(controller, lambda: all(peer.tasks() for peer in peers))


def test_every_host_is_told_which_of_them_share_a_folder_of_checkpoints(
    peers: tuple[Peer, Peer], controller: Controller, alice: Any
) -> None:
    services.submit(owner=alice, spec=spec(dp=2))
    peers[0].beat(shared_checkpoints=True)
    peers[1].beat()
    until(controller, lambda: all(peer.tasks() for peer in peers))
    for peer in peers:
        assert [node["shares"] for node in peer.tasks()[0]["nodes"]] == [True, False]


def test_where_the_store_is_is_told_again_to_a_host_that_took_its_share_late(
    peers: tuple[Peer, Peer], controller: Controller, starting: Attempt
) -> None:
    peers[0].beat(starting.pk)
    peers[0].say("store", {"attempt": starting.pk, "host": "host-a", "port": 4711})
    controller.turn()
    peers[1].orders()  # it does not know the attempt yet, so this order is lost
    for peer in peers:
        peer.beat(starting.pk)
    controller.turn()
    assert [order["kind"] for order in peers[0].orders()] == []  # the host that opened the store needs no order
    (told,) = [order for order in peers[1].orders() if order["kind"] == "store"]
    assert (told["attempt"], told["host"], told["port"]) == (starting.pk, "host-a", 4711)
    peers[1].running(starting.pk)
    peers[1].beat(starting.pk)
    controller.turn()
    assert peers[1].orders() == []  # once its ranks run, it has the address


def test_a_start_that_is_not_whole_names_the_host_that_did_not_begin(
    peers: tuple[Peer, Peer], controller: Controller, starting: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "START_LIMIT_S", 0.3)
    peers[0].running(starting.pk)

    def both() -> None:
        for peer in peers:
            peer.beat(starting.pk)

    until(controller, lambda: state_of(starting.run) != State.STARTING, each=both)
    run = Run.objects.get(pk=starting.run_id)
    assert (run.state, run.cause) == (State.FAILED, "timed_out")
    assert "yard-b" in run.detail and "yard-a" not in run.detail


def test_it_succeeds_when_both_have_and_everything_is_there(
    peers: tuple[Peer, Peer], controller: Controller, attempt: Attempt
) -> None:
    for rank, peer in enumerate(peers):
        peer.send(attempt.pk, points_frame(0, 9, rank=rank) + spans_frame(4, rank=rank), rank=rank)
    peers[0].ended(attempt.pk)
    controller.turn()
    assert state_of(attempt.run) == State.RUNNING
    assert ends_ordered(peers[1]) == []  # the other host gets the chance to end by itself
    peers[1].beat(attempt.pk)
    peers[1].ended(attempt.pk)
    until(controller, lambda: bool(Attempt.objects.get(pk=attempt.pk).settled))
    assert state_of(attempt.run) == State.SUCCEEDED
    assert [ends_ordered(peer) for peer in peers] == [["settled"], ["settled"]]
    assert len(selectors.series(Run.objects.get(pk=attempt.run_id), "loss", 1).step) == 9


def test_a_failure_on_one_host_ends_the_other_and_is_the_cause(
    peers: tuple[Peer, Peer], controller: Controller, attempt: Attempt
) -> None:
    peers[0].ended(attempt.pk, **LOST_PEER)  # the host that only lost its peer reports first
    controller.turn()
    assert state_of(attempt.run) == State.RUNNING
    assert ends_ordered(peers[1]) == ["end"]
    peers[1].ended(attempt.pk, **KILLED)
    controller.turn()
    run = Run.objects.get(pk=attempt.run_id)
    assert (run.state, run.cause, run.detail) == (State.FAILED, "killed_by_signal", KILLED["detail"])


def test_a_host_that_goes_on_is_told_again_that_the_other_has_failed(
    peers: tuple[Peer, Peer], controller: Controller, attempt: Attempt
) -> None:
    peers[1].ended(attempt.pk, **KILLED)
    controller.turn()
    peers[0].orders()
    peers[0].beat(attempt.pk)
    controller.turn()
    assert ends_ordered(peers[0]) == ["end"]


def test_it_is_stuck_when_no_rank_moves_on_any_host(
    peers: tuple[Peer, Peer], controller: Controller, attempt: Attempt
) -> None:
    def stuck() -> list[list[str]]:
        return [[order["kind"] for order in peer.orders() if order["kind"] == "stuck"] for peer in peers]

    def swept(*still: bool) -> list[str]:
        for peer, stands in zip(peers, still, strict=True):
            peer.beat(attempt.pk, still=[attempt.pk] if stands else [])
        controller.turn()
        return [worker for worker, _ in sweeps.sweep_standstills(controller._clocks, LEASE)]

    assert swept(True, False) == swept(False, True) == swept(False, False) == []  # one waits for the other
    assert swept(True, True) == ["yard-a", "yard-b"]
    stuck()
    controller._look_at_clocks()
    assert stuck() == [["stuck"], ["stuck"]]
    peers[0].ended(attempt.pk)
    assert swept(False, True) == ["yard-b"]  # those of the other host have ended


@pytest.mark.parametrize("op", ["0OPT_STEP", "9SEND_ACT0", None])
def test_a_standstill_over_hosts_says_who_waits_for_whom(
    peers: tuple[Peer, Peer], controller: Controller, attempt: Attempt, op: str | None
) -> None:
    """It ends as well where a worker tells an operation that the run does not have, or none."""
    for rank, peer in enumerate(peers):
        at = {"step": 7, "age": 61.0, **({"op": op} if op else {})}
        peer.beat(attempts={str(attempt.pk): {str(rank): at}})
        detail = f"No rank moved for 60 s: rank {rank} at step 7 in optimizer of stage 0."
        peer.ended(attempt.pk, outcome="failed", cause="no_progress", detail=detail)
    controller.turn()
    run = Run.objects.get(pk=attempt.run_id)
    assert run.cause == "no_progress" and run.detail.startswith("No rank moved for 60 s: rank 0 at step 7 in optimizer")
    assert (op == "0OPT_STEP") == run.detail.endswith(
        "Rank 0 waits for rank 1 and rank 1 waits for rank 0: the network between yard-a and yard-b may drop packets."
    )


def test_a_standstill_names_the_network_where_one_rank_tells_no_operation(
    peers: tuple[Peer, Peer], controller: Controller, attempt: Attempt
) -> None:
    told: list[dict[str, Any]] = [{"step": 7, "age": 61.0, "op": "0OPT_STEP"}, {"step": 7, "age": 61.0, "op": ""}]
    for rank, (peer, at) in enumerate(zip(peers, told, strict=True)):
        peer.beat(attempts={str(attempt.pk): {str(rank): at}})
        peer.ended(attempt.pk, outcome="failed", cause="no_progress", detail="No rank moved for 60 s: rank 0.")
    controller.turn()
    assert Run.objects.get(pk=attempt.run_id).detail.endswith(
        "Rank 0 waits for rank 1. Whether rank 1 waits, too, is not known: if so, the network between yard-a and "
        "yard-b may drop packets."
    )


@pytest.mark.parametrize("told", [None, "7", ["7"], {"step": "x", "op": "0F0"}])
def test_places_in_another_form_keep_no_attempt_from_ending(attempt: Attempt, told: Any) -> None:
    attempt.progress, report = {"0": told, "1": told}, {"cause": "no_progress", "detail": "No rank moved for 60 s."}
    assert standstill.explained(attempt, report) == report


@pytest.fixture
def impatient(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> Controller:
    monkeypatch.setattr(controller, "_lease", LEASE)
    return controller


@pytest.mark.parametrize("other_ended", [False, True])
def test_a_host_that_falls_silent_loses_the_run(
    peers: tuple[Peer, Peer], impatient: Controller, attempt: Attempt, other_ended: bool
) -> None:
    """An end of the other host because it lost its silent peer must not hide that the peer is lost."""
    if other_ended:
        peers[0].ended(attempt.pk, **LOST_PEER)
    alive = () if other_ended else (attempt.pk,)
    until(impatient, lambda: state_of(attempt.run) != State.RUNNING, each=lambda: peers[0].beat(*alive))
    run = Run.objects.get(pk=attempt.run_id)
    assert (run.state, run.cause) == (State.LOST, "worker_lost")
    assert "yard-b" in run.detail


def test_a_cause_that_was_told_is_kept_though_the_other_host_says_nothing_more(
    peers: tuple[Peer, Peer], impatient: Controller, attempt: Attempt
) -> None:
    peers[1].ended(attempt.pk, **KILLED)
    until(impatient, lambda: state_of(attempt.run) != State.RUNNING, each=peers[1].beat)
    run = Run.objects.get(pk=attempt.run_id)
    assert (run.state, run.cause) == (State.FAILED, "killed_by_signal")
    assert "yard-a told nothing" in run.detail


def test_an_orderly_stop_of_one_host_queues_the_run_again(
    peers: tuple[Peer, Peer], controller: Controller, attempt: Attempt
) -> None:
    peers[0].ended(attempt.pk, **LOST_PEER)
    peers[1].ended(attempt.pk, outcome="interrupted", cause="interrupted")
    controller.turn()
    assert Attempt.objects.get(pk=attempt.pk).outcome == "interrupted"
    assert state_of(attempt.run) in (State.QUEUED, State.STARTING)


def test_a_cancel_goes_to_both_and_is_over_when_both_say_so(
    peers: tuple[Peer, Peer], controller: Controller, attempt: Attempt, alice: Any
) -> None:
    cancelling.request_cancel(run=attempt.run, user=alice)
    controller.turn()
    assert [ends_ordered(peer) for peer in peers] == [["cancel"], ["cancel"]]
    peers[1].ended(attempt.pk, outcome="cancelled", cause="cancelled", detail="Cancelled.")
    controller.turn()
    assert state_of(attempt.run) == State.CANCELLING
    peers[0].ended(attempt.pk, outcome="cancelled", cause="cancelled", detail="Cancelled.")
    controller.turn()
    assert state_of(attempt.run) == State.CANCELLED


def test_how_well_the_clocks_were_tied_is_kept_with_the_spans(
    peers: tuple[Peer, Peer], controller: Controller, attempt: Attempt
) -> None:
    peers[0].send(attempt.pk, spans_frame(4, rank=0))
    peers[1].send(attempt.pk, spans_frame(4, rank=1, clock_within=40_000), rank=1)
    controller.turn()
    kept = dict(SpanChunk.objects.filter(attempt=attempt).values_list("rank", "clock_within"))
    assert kept == {0: None, 1: 40_000}
