"""The controller with a fake worker that only speaks the protocol: placing, cancelling, leases, fencing."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management.color import no_style
from django.db import connection
from django.test import Client
from django.utils import timezone

from dashboard.control.clocks import MOST_COUNTED_S
from dashboard.control.controller import Controller
from dashboard.control.heartbeats import UP_LIMIT
from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import reporting
from dashboard.fleet.services import drain, enable
from dashboard.runs import cancelling, services
from dashboard.runs.models import Attempt, Checkpoint, Run, SeriesChunk, State
from dashboard.runs.page.verdict import verdict
from dashboard.runs.waiting import queue
from tests.dashboard.fake_worker import Peer, points_frame, spec
from workers.contract import EVENTS, LEASE_S

SHORT_LEASE = 1.2 * MOST_COUNTED_S
"""Longer than the most that a single turn can add to a clock, so a slow machine alone never ends a lease."""
pytestmark = pytest.mark.django_db


def until(controller: Controller, true: Callable[[], bool], each: Callable[[], None] = lambda: None) -> None:
    """Runs controller turns until `true()`; fails after 30 s."""
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, "did not happen within 30 s"
        each()
        controller.turn()


def submit(owner: Any, **more: Any) -> Run:
    return services.submit(owner=owner, spec=spec(dp=more.pop("dp", 1)), **more)


def state_of(run: Run) -> str:
    return Run.objects.values_list("state", flat=True).get(pk=run.pk)


def started(peer: Peer, controller: Controller, run: Run) -> Attempt:
    """The run's attempt, once it is running."""
    peer.beat()
    until(controller, lambda: bool(peer.tasks()))
    attempt = run.attempts.get()
    peer.beat(attempt.pk)
    peer.running(attempt.pk)
    controller.turn()
    assert state_of(run) == State.RUNNING
    return attempt


def test_a_queued_run_is_sent_to_a_worker(peer: Peer, controller: Controller, alice: Any) -> None:
    run = submit(alice, dp=2)
    controller.turn()
    assert state_of(run) == State.QUEUED  # no worker has sent a heartbeat yet
    peer.beat()
    controller.turn()
    (task,) = peer.tasks()
    attempt = run.attempts.get()
    assert (task["run"], task["attempt"], task["number"]) == (run.pk, attempt.pk, 1)
    assert task["spec"] == run.spec
    node = {"worker": "yard-a", "devices": [0, 1], "first_rank": 0, "address": "host-a", "shares": False}
    assert task["nodes"] == [node]
    assert state_of(run) == State.STARTING


def test_a_whole_life(peer: Peer, controller: Controller, alice: Any) -> None:
    run = submit(alice)
    attempt = started(peer, controller, run)
    evaluated = points_frame(20, 1, "eval_loss") + points_frame(42, 1, "eval_loss")
    peer.send(attempt.pk, points_frame(0, 43) + points_frame(0, 43, "step_time") + evaluated)
    peer.ended(attempt.pk)
    until(controller, lambda: bool(Run.objects.get(pk=run.pk).summary))
    run.refresh_from_db()
    assert run.state == State.SUCCEEDED
    assert run.summary["held_out"] == {"step": 42, "loss": 42.5, "best": {"step": 20, "loss": 20.5}}
    assert verdict(run).sentence.startswith("The loss rose from 0.5 at step 0 to 42.5. 23 s a step")
    assert "Final loss 42.5, held out 42.5 (lowest 20.5 at step 20)." in verdict(run).sentence
    Checkpoint.objects.create(run=run, attempt=attempt, worker="yard-a", step=21, bytes=1, seconds=0.1)
    assert "held out 42.5 (lowest 20.5 at step 20, kept in the checkpoint after 21 steps)." in verdict(run).sentence
    run.summary["held_out"] = None
    assert "Final loss" not in verdict(run).sentence, "its first sentence has it"
    assert run.summary["timed"]["n"] == 40
    assert run.summary["timed"]["median"] == run.step_time == 23.0
    assert run.summary["final_loss"] == 42.5


def test_the_worker_is_as_its_heartbeat_said(peer: Peer, controller: Controller) -> None:
    peer.beat(
        calibration={"device": "cpu", "step_time": 0.1},
        refused="TRAINYARD_TOKEN is not set. " + 9_999 * "!",
        fields=["train.new"],
    )
    controller.turn()
    worker = Worker.objects.get()
    assert (worker.host, worker.boot, len(worker.devices)) == ("host-a", "boot-1", 2)
    assert worker.fields == ["train.new"]
    assert worker.refused.startswith("TRAINYARD_TOKEN is not set.") and len(worker.refused) < 1_000
    peer.beat(fields=[])
    controller.turn()
    worker = Worker.objects.get()
    assert worker.calibration["step_time"] == 0.1, "an old calibration is kept"
    assert worker.refused == "", "an old refusal is not kept, and a worker of an older version reports none"
    assert worker.fields == [], "it was started again with an older version"


def test_a_clock_of_the_broker_that_is_slow_makes_no_worker_silent(
    peer: Peer, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries have times of the broker's clock; silence is judged by the controller's."""
    ahead = timezone.now() + timedelta(hours=1)
    monkeypatch.setattr(timezone, "now", lambda: ahead)
    peer.beat()
    controller.turn()
    assert [worker.name for worker in reporting()] == ["yard-a"]
    peer.redis.delete(EVENTS)  # a stream takes no entry older than its newest
    controller._reader.start_over()
    peer.beat(age=100.0)
    controller.turn()
    assert reporting().count() == 0, "it waited in the stream"


def test_image_files_are_kept_until_the_worker_has_listed_them_again(peer: Peer, controller: Controller) -> None:
    files = [{"name": "pets", "images": 4, "height": 8, "width": 8, "channels": 1, "classes": 2}]
    kept = []
    lists: tuple[dict[str, Any], ...] = ({"image_files": files, "more_image_files": 7}, {}, {"image_files": []})
    for listed in lists:
        peer.beat(**listed)
        controller.turn()
        worker = Worker.objects.get()
        kept.append((worker.image_files, worker.more_image_files))
    assert kept == [(files, 7), (files, 7), ([], 0)]


def test_token_files_are_kept_until_the_worker_has_listed_them_again(peer: Peer, controller: Controller) -> None:
    """A worker that was restarted does not know them at its first heartbeat."""
    files = [{"name": "tale", "tokens": 4, "vocab": 10}]
    kept = []
    lists: tuple[dict[str, Any], ...] = ({"token_files": files, "more_token_files": 7}, {}, {"token_files": []})
    for listed in lists:
        peer.beat(**listed)
        controller.turn()
        worker = Worker.objects.get()
        kept.append((worker.token_files, worker.more_token_files))
    assert kept == [(files, 7), (files, 7), ([], 0)]


def test_weights_are_kept_until_the_worker_has_listed_them_again(peer: Peer, controller: Controller) -> None:
    weights, kept = [{"name": "tiny", "why": "It is cut short."}], []
    lists: tuple[dict[str, Any], ...] = ({"weights": weights}, {}, {"weights": []})
    for listed in lists:
        peer.beat(**listed)
        controller.turn()
        kept.append(Worker.objects.get().weights)
    assert kept == [weights, weights, []]


def test_a_worker_may_tell_of_any_characters(peer: Peer, controller: Controller, member: Client) -> None:
    """A tensor's name in a file may hold half a character, or a null one, and is quoted in why a folder is refused."""
    peer.beat(weights=[{"name": "odd", "why": "The weights have a\ud800b\x00."}])
    controller.turn()
    page = member.get("/runs/new/")
    assert page.status_code == 200 and "odd on yard-a: The weights have a\\ud800b\ufffd." in page.content.decode()


def test_a_run_ends_with_a_reason_of_any_characters(peer: Peer, controller: Controller, alice: Any) -> None:
    run = submit(alice)
    attempt = started(peer, controller, run)
    peer.ended(attempt.pk, outcome="failed", cause="refused", detail="The weights have a\ud800b.")
    controller.turn()
    run.refresh_from_db()
    assert (run.state, run.detail) == (State.FAILED, "The weights have a\\ud800b.")


def test_two_workers_of_one_name_get_nothing_new_until_one_is_gone(
    redis_url: str, peer: Peer, controller: Controller, alice: Any, client: Client
) -> None:
    other = Peer(redis_url, boot="boot-2")
    peer.beat()
    other.beat(host="host-b")
    controller.turn()
    assert not Worker.objects.get().clashes, "this also happens when a worker was restarted"
    peer.beat()
    other.beat(host="host-b")
    controller.turn()
    run = submit(alice)
    controller.turn()
    assert Worker.objects.get().clashes and state_of(run) == State.QUEUED
    client.force_login(alice)
    page = client.get("/fleet/").content.decode()
    assert "Two workers call themselves yard-a: on host-b and on host-a." in page
    Worker.objects.update(clashed_at=timezone.now() - timedelta(seconds=2 * LEASE_S))
    until(controller, lambda: bool(peer.tasks()), each=other.beat)
    assert state_of(run) == State.STARTING


def test_a_worker_that_announces_no_task_gets_runs_that_train_alone(
    peer: Peer, controller: Controller, alice: Any
) -> None:
    """A worker of an old version would train instead."""
    run, other = submit(alice), submit(alice)
    Run.objects.filter(pk=run.pk).update(task={"prompt": [1]})
    peer.beat(tasks=None, version="0.0.1")
    until(controller, lambda: state_of(other) == State.STARTING)
    assert state_of(run) == State.QUEUED
    said = "Needs a newer worker: yard-a runs version 0.0.1, which does not announce that it can generate text."
    assert queue.waiting(run).sentence == said
    for _ in range(3):
        controller.turn()  # until nothing but the heartbeat is new
    assert not controller._news
    peer.beat()
    controller.turn()
    assert state_of(run) == State.STARTING


def test_drained_workers_get_nothing_new(peer: Peer, controller: Controller, alice: Any, admin: Any) -> None:
    peer.beat()
    controller.turn()
    drain(worker=Worker.objects.get(), user=admin)
    run = submit(alice)
    peer.beat()
    controller.turn()
    assert state_of(run) == State.QUEUED
    enable(worker=Worker.objects.get(), user=admin)
    controller.turn()
    assert state_of(run) == State.STARTING


def test_a_worker_that_leaves_gets_nothing_back(peer: Peer, controller: Controller, alice: Any) -> None:
    run = submit(alice)
    attempt = started(peer, controller, run)
    peer.beat(attempt.pk, leaving=True)
    peer.ended(attempt.pk, "interrupted", cause="interrupted")
    until(controller, lambda: state_of(run) == State.QUEUED)
    peer.beat(leaving=True)
    controller.turn()
    assert (state_of(run), run.attempts.count()) == (State.QUEUED, 1)
    peer.boot = "boot-2"
    peer.beat()
    until(controller, lambda: run.attempts.count() == 2)


def test_what_a_leaving_worker_never_took_is_queued_again(redis_url: str, peer: Peer, alice: Any) -> None:
    controller = Controller(lease=SHORT_LEASE)
    run = submit(alice)
    peer.beat()
    until(controller, lambda: bool(peer.tasks()))
    peer.beat(leaving=True)
    until(controller, lambda: state_of(run) != State.STARTING)
    assert state_of(run) == State.QUEUED
    assert run.attempts.get().cause == "interrupted"


def test_study_runs_go_by_position(peer: Peer, controller: Controller, alice: Any) -> None:
    from dashboard.studies.models import Study

    study = Study.objects.create(name="s", owner=alice)
    runs = [submit(alice, study=study, position=position, exclusive=True) for position in (2, 0, 1)]
    peer.beat()
    controller.turn()
    assert [state_of(run) for run in runs] == [State.QUEUED, State.STARTING, State.QUEUED]


def test_cancel_of_a_running_run(peer: Peer, controller: Controller, alice: Any) -> None:
    run = submit(alice)
    attempt = started(peer, controller, run)
    cancelling.request_cancel(run=run, user=alice)
    controller.turn()
    order = {"kind": "cancel", "attempt": attempt.pk}
    assert state_of(run) == State.CANCELLING
    assert peer.orders() == [order]
    peer.beat(attempt.pk)  # the attempt is still listed, so the order is repeated
    controller.turn()
    assert peer.orders() == [order]
    peer.ended(attempt.pk, "cancelled", cause="cancelled", detail="Stopped.")
    controller.turn()
    assert state_of(run) == State.CANCELLED


def test_cancel_before_the_worker_knew_of_it(redis_url: str, peer: Peer, alice: Any) -> None:
    controller = Controller(lease=SHORT_LEASE)
    run = submit(alice)
    peer.beat()
    controller.turn()
    cancelling.request_cancel(run=run, user=alice)
    until(controller, lambda: state_of(run) == State.CANCELLED, peer.beat)


def test_silence_loses_the_attempt_and_its_return_ends_it_and_brings_the_rest(
    redis_url: str, peer: Peer, alice: Any
) -> None:
    controller = Controller(lease=SHORT_LEASE)
    run = submit(alice)
    attempt = started(peer, controller, run)
    until(controller, lambda: state_of(run) == State.LOST)
    run.refresh_from_db()
    assert run.cause == "worker_lost"
    assert "yard-a" in run.detail
    peer.orders()
    peer.beat(attempt.pk)
    controller.turn()
    assert {"kind": "end", "attempt": attempt.pk} in peer.orders()
    late = peer.write(attempt.pk, points_frame(0, 5))
    peer.ended(attempt.pk, "succeeded")
    peer.publish(attempt.pk, *late)
    controller.turn()
    assert state_of(run) == State.LOST
    assert SeriesChunk.objects.filter(attempt=attempt).exists()
    assert {"kind": "settled", "attempt": attempt.pk} in peer.orders()


def test_a_worker_that_is_back_without_the_attempt(redis_url: str, peer: Peer, alice: Any) -> None:
    controller = Controller(lease=SHORT_LEASE)
    run = submit(alice, retries=1)
    attempt = started(peer, controller, run)
    reborn = Peer(redis_url, boot="boot-2")
    until(controller, lambda: run.attempts.count() == 2, reborn.beat)
    attempt.refresh_from_db()
    assert (attempt.over, attempt.cause) == (True, "worker_lost")
    assert state_of(run) == State.STARTING
    assert run.attempts.order_by("-pk")[0].worker_boot == "boot-2"


def test_a_heartbeat_keeps_the_lease(redis_url: str, peer: Peer, alice: Any) -> None:
    controller = Controller(lease=SHORT_LEASE)
    run = submit(alice)
    attempt = started(peer, controller, run)
    for _ in range(4):
        controller._clocks.advance(0.9 * MOST_COUNTED_S)
        peer.beat(attempt.pk)
        controller.turn()
        controller._look_at_clocks()
        assert state_of(run) == State.RUNNING
    attempt.refresh_from_db()
    assert attempt.progress["0"]["op"] == "0F1"
    for _ in range(4):
        controller._clocks.advance(0.9 * MOST_COUNTED_S)
        controller._look_at_clocks()
    assert state_of(run) == State.LOST, "without heartbeats the same time ends it"


def test_the_word_that_ranks_run_is_asked_for_again_where_a_broker_lost_it(
    peer: Peer, controller: Controller, alice: Any
) -> None:
    """Otherwise a run that trains would end as one that never started."""
    run = submit(alice)
    peer.beat()
    until(controller, lambda: bool(peer.tasks()))
    attempt = run.attempts.get()
    peer.beat(attempt.pk)
    controller.turn()
    assert peer.orders() == []  # the report may still be on its way
    assert attempt.sent_at
    Attempt.objects.update(sent_at=attempt.sent_at - 2 * UP_LIMIT)
    peer.beat(attempt.pk)
    controller.turn()
    assert peer.orders() == [{"kind": "up", "attempt": attempt.pk}]
    peer.running(attempt.pk)
    peer.beat(attempt.pk)
    controller.turn()
    assert (state_of(run), peer.orders()) == (State.RUNNING, [])


def test_a_restarted_controller_waits_a_full_lease(redis_url: str, peer: Peer, alice: Any) -> None:
    run = submit(alice)
    attempt = started(peer, Controller(lease=SHORT_LEASE), run)
    Attempt.objects.update(lease_until="2020-01-01T00:00:00Z")
    Worker.objects.update(heartbeat_at="2020-01-01T00:00:00Z")
    successor = Controller(lease=SHORT_LEASE)
    successor.turn()
    assert state_of(run) == State.RUNNING
    peer.beat(attempt.pk)
    successor.turn()
    assert state_of(run) == State.RUNNING
    until(successor, lambda: state_of(run) == State.LOST)


def test_a_new_database_gives_out_no_number_that_a_worker_knows(peer: Peer, controller: Controller, alice: Any) -> None:
    """Attempt numbers survive in the workers' folders after the database is gone, so a new database must not reuse
    them.
    """
    peer.beat()
    run = submit(alice)
    until(controller, lambda: run.attempts.exists())
    old = run.attempts.get().pk
    run.delete()
    with connection.cursor() as cursor:
        for statement in connection.ops.sequence_reset_by_name_sql(
            no_style(), [{"table": Attempt._meta.db_table, "column": "id"}]
        ):
            cursor.execute(statement)
    again = submit(alice)
    until(controller, lambda: again.attempts.exists())
    assert again.attempts.get().pk > old


def test_an_orderly_stop_queues_again(peer: Peer, controller: Controller, alice: Any) -> None:
    run = submit(alice)
    attempt = started(peer, controller, run)
    peer.ended(attempt.pk, "interrupted", cause="interrupted")
    controller.turn()
    until(controller, lambda: state_of(run) == State.STARTING, peer.beat)
    assert run.attempts.count() == 2
    assert run.events.filter(kind="requeued").exists()


def test_an_unknown_attempt_is_fenced_and_forgotten(peer: Peer, controller: Controller) -> None:
    peer.beat(4711)
    peer.send(4712, points_frame(0, 1))
    controller.turn()
    orders = peer.orders()
    assert {"kind": "fence", "attempt": 4711} in orders
    assert {"kind": "settled", "attempt": 4712} in orders
