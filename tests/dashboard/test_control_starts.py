"""How long a run may take to start: lost messages, workers that never take it, and what it may legitimately wait
for.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from dashboard.control import clocks, placing, sweeps
from dashboard.control.controller import Controller
from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import RETURNS_S
from dashboard.ledger.models import Profile, ProfileState
from dashboard.runs import states
from dashboard.runs.models import Attempt, Checkpoint, Corpus, Run, State
from dashboard.runs.waiting import queue
from dashboard.studies.models import Study
from tests.dashboard import factory
from tests.dashboard.fake_worker import Peer
from tests.dashboard.test_control import SHORT_LEASE, started, state_of, submit, until
from workers.contract import LEASE_S

pytestmark = pytest.mark.django_db


def test_a_vanished_start_message_is_sent_again(
    redis_url: str, peer: Peer, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "RESEND_S", 0.5)
    controller = Controller(lease=SHORT_LEASE)
    run = submit(alice)
    peer.beat()
    controller.turn()
    peer.redis.delete("worker.yard-a")
    until(controller, lambda: bool(peer.tasks()), peer.beat)
    assert [task["attempt"] for task in peer.tasks()] == [run.attempts.get().pk]


def test_a_worker_that_never_takes_it_loses_it(
    redis_url: str, peer: Peer, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "RESEND_S", 0.3)
    controller = Controller(lease=SHORT_LEASE)
    run = submit(alice)
    until(controller, lambda: state_of(run) == State.LOST, peer.beat)
    assert "did not take it" in Run.objects.get(pk=run.pk).detail


def test_a_start_message_does_not_outlive_its_attempt(redis_url: str, peer: Peer, alice: Any) -> None:
    """It still waits in the queue of a worker whose host died before taking it; the run goes on elsewhere."""
    controller = Controller(lease=SHORT_LEASE)
    run = submit(alice, retries=1)
    peer.beat()
    until(controller, lambda: run.attempts.exists())
    attempt = run.attempts.get()
    until(controller, lambda: state_of(run) == State.QUEUED)
    assert peer.orders() == [{"kind": "fence", "attempt": attempt.pk}]


def test_a_host_that_died_before_it_took_the_run_uses_no_retry(redis_url: str, peer: Peer, alice: Any) -> None:
    controller = Controller(lease=SHORT_LEASE)
    run = submit(alice)
    peer.beat()
    until(controller, lambda: run.attempts.exists())
    until(controller, lambda: state_of(run) != State.STARTING)
    run.refresh_from_db()
    assert (run.state, run.retries_left) == (State.QUEUED, 0)
    assert run.detail == "Worker yard-a fell silent before it took the run. Queued again."
    peer.beat()
    until(controller, lambda: run.attempts.count() == 2)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_host_that_died_after_it_took_the_run_loses_it(
    redis_url: str, peer: Peer, alice: Any, restarted: bool
) -> None:
    """Also for a controller that began after the run was taken, and knows it from the row alone."""
    controller = Controller(lease=SHORT_LEASE)
    run = submit(alice)
    peer.beat()
    until(controller, lambda: run.attempts.exists())
    peer.beat(run.attempts.get().pk, step=-1)
    controller.turn()
    controller = Controller(lease=SHORT_LEASE) if restarted else controller
    until(controller, lambda: state_of(run) != State.STARTING)
    assert state_of(run) == State.LOST


def test_a_long_queue_is_read_as_far_as_there_is_something_to_give(
    redis_url: str, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    requests = placing.requests

    def noted(runs: list[Run], *more: Any) -> list[Any]:
        read.extend(run.pk for run in runs)
        return requests(runs, *more)

    monkeypatch.setattr(placing, "requests", noted)
    monkeypatch.setattr(placing, "QUEUE_PART", 2)
    factory.worker("yard-a", devices=3)
    runs = [factory.queued(alice).pk for _ in range(9)]
    assert [one.run_id for one in placing.place_queued({"yard-a"}, {"yard-a"})] == runs[:3]
    assert read == runs[:4]


def test_a_host_that_is_drained_while_runs_are_placed_gets_no_more(two_hosts: None, alice: Any) -> None:
    runs = [factory.queued(alice, run_on=f"worker:{name}").pk for name in ("yard-a", "yard-a", "yard-b")]
    made = placing.place_queued({"yard-a", "yard-b"}, {"yard-a", "yard-b"})
    assert next(made).run_id == runs[0]
    Worker.objects.filter(name="yard-a").update(draining=True)
    assert [attempt.run_id for attempt in made] == runs[2:]
    assert Run.objects.get(pk=runs[1]).state == State.QUEUED


def test_a_host_whose_heartbeat_is_late_is_waited_for(two_hosts: None, alice: Any) -> None:
    """Its study stays there, and younger runs do not overtake the one that needs it."""
    study = Study.objects.create(name="s", owner=alice)
    first, second = (factory.queued(alice, study=study, position=i, exclusive=True) for i in range(2))
    states.finish(factory.start(first), "succeeded")
    assert list(placing.place_queued({"yard-a", "yard-b"}, {"yard-b"})) == []
    (placed,) = placing.place_queued({"yard-a", "yard-b"}, {"yard-a", "yard-b"})
    assert placed.worker and (placed.run_id, placed.worker.name) == (second.pk, "yard-a")
    states.finish(placed, "succeeded")
    wide, small = factory.queued(alice, {"dp": 4}), factory.queued(alice)
    assert list(placing.place_queued({"yard-a", "yard-b"}, {"yard-b"})) == []
    assert [one.run_id for one in placing.place_queued({"yard-b"}, {"yard-b"})] == [small.pk], "its lease is over"
    assert state_of(wide) == State.QUEUED


def test_a_restarted_controller_leaves_a_study_on_its_host(redis_url: str, peer: Peer, alice: Any) -> None:
    """Until that host has sent its next heartbeat, its devices are waited for, though another host has free ones."""
    study, other = Study.objects.create(name="s", owner=alice), Peer(redis_url, name="yard-b")
    before = Controller()
    first = submit(alice, study=study, exclusive=True)
    attempt = started(peer, before, first)
    peer.ended(attempt.pk)
    until(before, lambda: state_of(first) == State.SUCCEEDED)
    second = submit(alice, study=study, position=1, exclusive=True)
    after = Controller()
    for _ in range(2):
        other.beat()
        after.turn()
    assert (state_of(second), after._alive, after._fresh) == (State.QUEUED, {"yard-a", "yard-b"}, {"yard-b"})
    peer.beat()
    until(after, lambda: state_of(second) == State.STARTING)
    worker = second.attempts.get().worker
    assert worker and worker.name == "yard-a"


def test_a_restarted_controller_expects_nobody_who_was_silent_before(redis_url: str, peer: Peer, alice: Any) -> None:
    before = Controller()
    peer.beat()
    before.turn()
    Worker.objects.update(heartbeat_at=timezone.now() - timedelta(seconds=2 * LEASE_S))
    after = Controller()
    after.turn()
    assert after._alive == set()


def test_heartbeats_of_a_backlog_are_as_old_as_they_are(peer: Peer, controller: Controller, alice: Any) -> None:
    """After an outage of the controller: the host may have died in the meantime."""
    run = submit(alice)
    peer.beat(age=60)
    for _ in range(3):
        controller.turn()
    assert state_of(run) == State.QUEUED
    peer.beat()
    until(controller, lambda: state_of(run) == State.STARTING)


def test_an_attempt_that_never_starts_fails_and_is_ended(
    peer: Peer, controller: Controller, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "START_LIMIT_S", 0.5)
    run = submit(alice)
    peer.beat()
    until(controller, lambda: bool(peer.tasks()))
    attempt = run.attempts.get()
    until(controller, lambda: state_of(run) != State.STARTING, each=lambda: peer.beat(attempt.pk))
    run.refresh_from_db()
    assert (run.state, run.cause) == (State.FAILED, "timed_out")
    assert "had not all started" in run.detail
    peer.orders()
    peer.beat(attempt.pk)
    controller.turn()
    assert {"kind": "end", "attempt": attempt.pk} in peer.orders()


def test_an_attempt_behind_a_profile_may_start_later(
    peer: Peer, controller: Controller, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run waits for a profile that was requested earlier. That time does not count, and after it the start still
    has its full time limit.
    """
    monkeypatch.setattr(sweeps, "START_LIMIT_S", 0.5)
    monkeypatch.setattr(clocks, "MOST_COUNTED_S", 0.3)  # so that one slow turn does not use up the limit
    peer.beat()
    controller.turn()
    profile = Profile.objects.create(worker=Worker.objects.get(name=peer.name), asked_by=alice, spec={}, key="a")
    run = submit(alice)
    until(controller, lambda: bool(peer.tasks()))
    attempt = run.attempts.get()
    later = time.monotonic() + 1.5
    until(controller, lambda: time.monotonic() > later, each=lambda: peer.beat(attempt.pk))
    assert state_of(run) == State.STARTING
    profile.state, profile.done_at = ProfileState.FAILED, timezone.now()
    profile.save()
    controller.turn()
    assert state_of(run) == State.STARTING
    until(controller, lambda: state_of(run) != State.STARTING, each=lambda: peer.beat(attempt.pk))
    run.refresh_from_db()
    assert (run.state, run.cause) == (State.FAILED, "timed_out")


def test_a_running_attempt_has_no_limit_of_the_start(
    peer: Peer, controller: Controller, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "START_LIMIT_S", 0.2)
    run = submit(alice)
    attempt = started(peer, controller, run)
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        peer.beat(attempt.pk)
        controller.turn()
    assert state_of(run) == State.RUNNING


def test_a_corpus_to_fetch_gives_the_start_more_time(alice: Any) -> None:
    run = submit(alice)
    attempt = Attempt(run=run)
    assert sweeps._start_limit(attempt) == sweeps.START_LIMIT_S
    Corpus.objects.create(sha256="0" * 64, name="large", size=100 << 20, owner=alice)
    run.spec["train"]["corpus"] = "blob:" + "0" * 64
    assert sweeps._start_limit(attempt) == sweeps.START_LIMIT_S + 100


def test_ranks_of_an_attempt_that_was_given_up_give_the_next_one_more_time(alice: Any) -> None:
    run = submit(alice)
    lost = factory.start(run)
    Attempt.objects.filter(pk=lost.pk).update(over=True, ended_at=timezone.now())
    there, elsewhere = ([{**lost.devices[0], "worker": name}] for name in ("yard-a", "yard-b"))
    now = timezone.now()
    assert sweeps._start_limit(Attempt(run=run, devices=elsewhere, sent_at=now)) == sweeps.START_LIMIT_S
    again = Attempt(run=run, devices=there, sent_at=now)
    assert sweeps._start_limit(again) == sweeps.START_LIMIT_S + sweeps.STOP_LIMIT_S
    Attempt.objects.filter(pk=lost.pk).update(report={"sizes": {}})
    assert sweeps._start_limit(again) == sweeps.START_LIMIT_S


def test_checkpoints_to_read_through_give_a_retry_more_time(alice: Any) -> None:
    run = submit(alice)
    first = factory.start(run)
    for step in (10, 20):
        Checkpoint.objects.create(run=run, attempt=first, worker="yard-a", step=step, bytes=50 << 20, seconds=1.0)
    assert sweeps._start_limit(Attempt(run=run)) == sweeps.START_LIMIT_S + 100


def test_a_large_host_that_was_heard_minutes_ago_keeps_its_study(alice: Any) -> None:
    """The controller counts the time in which it could listen; the age of the last heartbeat does as well."""
    large = factory.worker("yard-a", devices=8)
    factory.worker("yard-b", devices=2)
    study = Study.objects.create(name="s", owner=alice)
    wide, small = (
        factory.queued(alice, {"dp": dp}, study=study, position=i, exclusive=True) for i, dp in enumerate((8, 2))
    )
    alive = {"yard-b"}

    def heard(seconds: float) -> None:
        Worker.objects.filter(pk=large.pk).update(heartbeat_at=timezone.now() - timedelta(seconds=seconds))

    heard(RETURNS_S / 2)
    assert list(placing.place_queued(alive, alive)) == []
    assert queue.waiting(small).sentence.startswith("Waits for other runs of its study")
    heard(2 * RETURNS_S)
    assert list(placing.place_queued(alive, alive, {"yard-a"})) == [], "expected back since the controller began"
    assert [one.run_id for one in placing.place_queued(alive, alive)] == [small.pk]
    assert state_of(wide) == State.QUEUED
