"""The controller's clocks and lock, and the starter study that it creates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
import redis
from django.db import OperationalError
from django.utils import timezone

from dashboard.control import controller as loop
from dashboard.control.clocks import MOST_COUNTED_S, Clocks
from dashboard.control.controller import Controller
from dashboard.control.starter import Starter
from dashboard.deadlocks import SQLSTATE
from dashboard.fleet.models import Worker
from dashboard.runs.models import Attempt, Run, State
from parallel_core.file_lock import FileLock
from tests.dashboard import factory
from tests.dashboard.database_faults import refuse
from tests.dashboard.fake_worker import Peer
from tests.dashboard.test_control import submit, until
from tests.spies import noting
from workers.contract import LEASE_S

pytestmark = pytest.mark.django_db


def test_a_suspended_controller_does_not_count_its_own_absence() -> None:
    clocks = Clocks()
    clocks.watch("a", 1)
    clocks.advance(3600)
    assert clocks.watch("a", 1) == (MOST_COUNTED_S, MOST_COUNTED_S)


def test_a_heartbeat_without_the_attempt_resets_the_worker_alone() -> None:
    clocks = Clocks()
    clocks.heard("a", {1})
    clocks.advance(0.5)
    clocks.heard("a", set())
    assert clocks.watch("a", 1) == (0.0, 0.5)
    assert clocks.was_listed("a", 1) and not clocks.was_listed("b", 1)
    clocks.keep(set())
    assert not clocks.was_listed("a", 1)


def test_hosts_of_an_attempt_are_timed_apart() -> None:
    clocks = Clocks()
    clocks.heard("a", {1})
    clocks.watch("b", 1)
    clocks.advance(0.5)
    clocks.heard("a", {1})
    assert (clocks.watch("a", 1)[1], clocks.watch("b", 1)[1]) == (0.0, 0.5)
    assert clocks.listed_for(1) == 0.5  # counted from the first host that took it
    clocks.restart(1)
    assert clocks.watch("b", 1)[1] == 0.0


def test_only_workers_that_beat_are_alive() -> None:
    clocks = Clocks()
    clocks.watch("never", 1)
    clocks.heard("a", set())
    assert clocks.alive(1.0) == {"a"}
    clocks.advance(0.8)
    clocks.advance(0.8)
    assert clocks.alive(1.0) == set()


def test_who_was_heard_before_is_alive_for_a_lease_but_not_fresh() -> None:
    clocks = Clocks()
    clocks.heard("new", set())
    clocks.expect(["a", "new"])
    assert (clocks.alive(1.0), clocks.fresh(60), clocks.still(1.0)) == ({"a", "new"}, {"new"}, {})
    assert clocks.watch("a", 1) == (0.0, 0.0)
    clocks.advance(0.8)
    clocks.heard("new", set())
    clocks.advance(0.8)
    assert clocks.alive(1.0) == {"new"}


def test_a_heartbeat_that_was_read_late_is_not_fresh() -> None:
    clocks = Clocks()
    clocks.heard("late", set(), 5.0)
    clocks.heard("new", set())
    clocks.heard("ahead", set(), -0.1)
    assert clocks.fresh(4.0) == {"new", "ahead"}
    assert clocks.alive(4.0) == {"new", "ahead", "late"}, "its silence counts from when it could be heard"


def test_a_late_heartbeat_is_no_reason_to_place_runs(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    beat = controller._clocks.heard
    beat("a", set())
    assert controller._hosts_changed() and not controller._hosts_changed()
    beat("a", set(), loop.FRESH_S + 0.5)
    assert not controller._hosts_changed(), "late, but within the lease"
    assert (controller._alive, controller._fresh) == ({"a"}, set())
    beat("a", set())
    assert controller._hosts_changed(), "it gives its devices again"
    for _ in range(int(LEASE_S / MOST_COUNTED_S) + 1):
        controller._clocks.advance(MOST_COUNTED_S)
    assert controller._hosts_changed() and controller._alive == set(), "runs that waited for it may go elsewhere"


def test_only_a_controller_that_placed_an_attempt_has_heard_all_of_it() -> None:
    clocks = Clocks()
    clocks.heard("a", {1, 2})
    clocks.placed(1)
    assert clocks.from_placement(1) and not clocks.from_placement(2)
    clocks.keep({2})
    assert not clocks.from_placement(1)


def test_a_second_controller_waits_for_the_lock(tmp_path: Any) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.hold()
    assert first.hold()
    assert not second.hold()
    first.release()
    assert second.hold()


class Lent(NamedTuple):
    """A lock that another controller has between two terms of this one."""

    controller: Controller
    terms: Iterator[bool | Callable[[], bool]]

    def hold(self) -> bool:
        step = next(self.terms, None)
        if step is None:
            self.controller.stop()
            return True
        return step if isinstance(step, bool) else step()

    def release(self) -> None: ...


def test_each_term_of_the_lock_begins_with_whom_the_controller_before_had_heard(
    controller: Controller, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this one heard in its own last term is old by then, and so is what it had to send; which runs have no
    summary is asked once a term."""
    asked: list[int] = []

    def meanwhile() -> bool:
        controller._unsent[5] = Attempt(pk=5)
        Worker.objects.update(heartbeat_at=timezone.now() - timedelta(seconds=2 * LEASE_S))
        factory.worker("yard-b")
        return False

    lock = Lent(controller, iter([True, meanwhile, True]))
    monkeypatch.setattr(loop, "lock_of_database", lambda: lock)
    monkeypatch.setattr(loop, "unsummarised", noting(loop.unsummarised, asked, lambda: len(asked)))
    peer.beat()
    controller.run()
    assert controller._clocks.alive(LEASE_S) == {"yard-b"}
    assert controller._clocks.fresh(60) == set(), "not heard by this controller"
    assert (controller._unsent, asked) == ({}, [0, 1])


def test_what_a_sweep_of_leases_found_outlasts_a_broker_that_takes_no_order(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, order = Attempt(pk=5), ("a", {"kind": "fence", "attempt": 6})

    def away(_client: Any, orders: list[Any]) -> None:
        if orders:
            raise redis.ConnectionError("gone")

    found = iter([(again, "again", []), (Attempt(pk=6, run_id=6), "ended", [order])])
    monkeypatch.setattr(loop.sweeps, "sweep_leases", lambda *_: found)
    monkeypatch.setattr(loop, "send_messages", away)
    controller._news, controller._to_summarise = False, set()
    with pytest.raises(redis.ConnectionError):
        controller._look_at_clocks()
    assert (controller._unsent, controller._news, controller._to_summarise) == ({5: again}, True, {6})
    sent: list[Any] = []
    monkeypatch.setattr(loop, "send_messages", lambda _client, orders: sent.extend(orders))
    controller._look_at_clocks()
    assert sent == [order], "the next sweep does not find it, but it is still to be sent"


def test_a_database_that_goes_away_in_a_sweep_of_leases_costs_no_summary_and_no_fence(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt is ended in a transaction of its own. The sweep may fail at the same one each time."""
    order, sent = ("a", {"kind": "fence", "attempt": 6}), list[Any]()

    def going(*_: Any) -> Iterator[Any]:
        yield Attempt(pk=6, run_id=6), "ended", [order]
        raise OperationalError("the connection was lost")

    monkeypatch.setattr(loop.sweeps, "sweep_leases", going)
    monkeypatch.setattr(loop, "send_messages", lambda _client, orders: sent.extend(orders))
    controller._unsummarised_known = True
    with pytest.raises(OperationalError) as gone:
        controller._check_leases()
    assert (controller._to_summarise, controller._fences, sent) == ({6}, [], [order])
    monkeypatch.setattr(loop.connection, "close", lambda: None)  # of the test
    controller._recover(gone.value)
    assert not controller._unsummarised_known, "what else the failed turn has ended is asked of the database"


def test_a_deadlock_is_not_logged_as_a_database_that_is_away(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "RETRY_S", 0.0)
    monkeypatch.setattr(loop.connection, "close", lambda: None)  # of the test
    ended, lost = OperationalError("deadlock detected"), OperationalError("the connection was lost")
    ended.__cause__ = type("Ended", (Exception,), {"sqlstate": SQLSTATE})()
    with caplog.at_level("INFO"):
        controller._recover(ended)
        assert "tried again: deadlock detected" in caplog.text and "is away" not in caplog.text
        controller._recover(lost)
        assert "is away: the connection was lost" in caplog.text


def test_the_second_of_two_lost_attempts_cannot_take_the_first_along(controller: Controller, alice: Any) -> None:
    """A sweep whose database fails at the second one has already ended the first."""
    first, second = (factory.start(factory.queued(alice)) for _ in range(2))
    controller._clocks.watch("yard-a", first.pk)
    controller._clocks.watch("yard-a", second.pk)
    refuse("runs_event", f"NEW.run_id = {second.run_id}", operational=True)
    for _ in range(8):
        controller._clocks.advance(MOST_COUNTED_S)
    with pytest.raises(OperationalError):
        controller._check_leases()
    assert controller._to_summarise == {first.run_id}


@pytest.mark.parametrize("operational", [True, False])
def test_a_run_that_cannot_be_placed_takes_no_other_along(
    operational: bool, peer: Peer, controller: Controller, alice: Any
) -> None:
    """What was placed before it is started at once; what comes after it is placed too, unless the database is away."""
    peer.beat()
    controller.turn()
    first, second, third = (factory.queued(alice) for _ in range(3))
    peer.devices = 3
    peer.beat()
    refuse("runs_event", f"NEW.run_id = {second.pk}", operational)
    if operational:
        with pytest.raises(OperationalError):
            controller.turn()
        controller._send_unsent()
    else:
        controller.turn()
        assert [one["what"] for one in controller._guard.failing] == ["place queued runs"]
    going = [first.pk] if operational else [first.pk, third.pk]
    assert [task["run"] for task in peer.tasks()] == going
    assert set(Run.objects.filter(state=State.STARTING).values_list("pk", flat=True)) == set(going)


CALIBRATION = {
    "device": "cpu",
    "model": {"kind": "gpt", "layers": 4, "hidden": 64, "heads": 4, "seq": 64, "vocab": 256, "tied": False},
    "global_batch": 16,
    "step_time": 0.1,
}


def test_the_first_calibrated_worker_brings_the_starter_study_once(
    peer: Peer, controller: Controller, admin: Any
) -> None:
    from dashboard.studies.models import Study

    peer.beat()
    controller.turn()
    assert not Study.objects.exists()
    until(controller, Study.objects.exists, lambda: peer.beat(calibration=CALIBRATION))
    study = Study.objects.get()
    assert (study.kind, study.owner) == ("starter", admin)
    until(controller, lambda: Attempt.objects.count() == 1, peer.beat)  # one run at a time
    Starter().consider()
    assert Study.objects.count() == 1
    Run.objects.all().delete()
    Study.objects.all().delete()
    Starter().consider()  # as at the next start
    assert not Study.objects.exists(), "created only once in a yard's life"


def test_a_yard_that_has_runs_gets_no_starter_study(peer: Peer, controller: Controller, admin: Any, alice: Any) -> None:
    from dashboard.studies.models import Study

    submit(alice)
    peer.beat(calibration=CALIBRATION)
    controller.turn()
    Starter().consider()
    assert not Study.objects.exists()
