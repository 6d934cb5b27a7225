"""The controller looks for work only if somebody has written to the database, instead of querying it five times a
second.
"""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dashboard.control import changes
from dashboard.control import controller as loop
from dashboard.control.changes import Changes
from dashboard.control.controller import Controller
from dashboard.runs.models import State
from tests.dashboard.fake_worker import Peer, points_frame
from tests.dashboard.test_control import started, state_of, submit

own_writes_are_told = pytest.mark.skipif("connection.vendor != 'sqlite'", reason="PostgreSQL has one log for all")


def quiet(changes: Changes) -> None:
    """Waits until no change is reported; PostgreSQL may still be busy with work of its own."""
    for _ in range(50):
        if not changes.any():
            return
    raise AssertionError("something writes all the time")


def add(name: str) -> None:
    get_user_model().objects.create_user(name)


def add_elsewhere(name: str) -> None:
    """Writes and commits on another connection."""

    def work() -> None:
        add(name)
        connection.close()

    thread = Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.django_db(transaction=True)
def test_commits_of_others_are_seen_once() -> None:
    changes = Changes()
    assert changes.any(), "at first everything counts as changed"
    quiet(changes)
    add_elsewhere("ann")
    assert changes.any()
    quiet(changes)
    changes.forget()
    assert changes.any()


@pytest.mark.django_db(transaction=True)
def test_own_writes_are_no_news_to_whoever_skips_them() -> None:
    """PostgreSQL may write something of its own now and then, but not each time."""
    changes = Changes()
    changes.skip_own()
    assert changes.any(), "at first everything counts as changed, also after that"

    def told(name: str) -> bool:
        add(name)
        changes.skip_own()
        return changes.any()

    quiet(changes)
    assert not all(told(f"user-{i}") for i in range(9))


@own_writes_are_told
@pytest.mark.django_db(transaction=True)
def test_own_writes_can_be_skipped_and_those_of_others_not() -> None:
    changes = Changes()
    quiet(changes)
    add("ann")
    assert changes.any()
    add("bob")
    changes.skip_own()
    assert not changes.any()
    add("cid")
    add_elsewhere("dan")
    changes.skip_own()
    assert changes.any()


@pytest.mark.parametrize("part", ["_store", "_summarise_one"])
@pytest.mark.django_db(transaction=True)
def test_a_turn_skips_no_commit_of_others_before_it_writes(
    peer: Peer, controller: Controller, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Where own rows are not counted, as by PostgreSQL: in a turn that stores nothing, and before what nobody waits
    for."""
    monkeypatch.setattr(changes, "_rows_changed", lambda: None)
    for name in ("SWEEP_EVERY_S", "CLOCKS_EVERY_S", "UNSETTLED_EVERY_S", "STARTER_EVERY_S", "STAMP_EVERY_S"):
        monkeypatch.setattr(loop, name, 1e6)
    for _ in range(3):
        controller.turn()
    quiet(controller._changes)
    own = getattr(controller, part)

    def late(*entries: Any) -> Any:
        add_elsewhere("ann")
        return own(*entries)

    monkeypatch.setattr(controller, part, late)
    controller._leisure.remains = part == "_summarise_one"
    controller._news = False
    controller.turn()
    assert controller._news or controller._changes.any()


def asked_in_a_turn(controller: Controller) -> CaptureQueriesContext:
    with CaptureQueriesContext(connection) as asked:
        controller.turn()
    return asked


@own_writes_are_told
@pytest.mark.django_db
def test_an_idle_turn_asks_one_question(
    peer: Peer, controller: Controller, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle turn runs one query. Data and heartbeats with nothing new cause only the queries they need, and the next
    turn still finds a cancel or a new run.
    """
    for name in ("SWEEP_EVERY_S", "CLOCKS_EVERY_S", "UNSETTLED_EVERY_S", "STARTER_EVERY_S", "STAMP_EVERY_S"):
        monkeypatch.setattr(loop, name, 1e6)
    run = submit(alice)
    attempt = started(peer, controller, run)
    for _ in range(3):
        controller.turn()
    assert [query["sql"] for query in asked_in_a_turn(controller)] == ["PRAGMA data_version"]
    peer.send(attempt.pk, points_frame(0, 10))
    tables = " ".join(query["sql"] for query in asked_in_a_turn(controller))
    assert "runs_serieschunk" in tables and "fleet_worker" not in tables
    peer.beat(attempt.pk)
    tables = " ".join(query["sql"] for query in asked_in_a_turn(controller))
    assert "fleet_worker" in tables and "studies_study" not in tables
    run.cancel_requested_at = run.queued_at
    run.save()
    second = submit(alice)
    controller.turn()
    assert state_of(run) in (State.CANCELLING, State.CANCELLED)  # its worker's last heartbeat is a while ago
    assert state_of(second) == State.STARTING


@own_writes_are_told
@pytest.mark.django_db
def test_a_heartbeat_that_says_something_new_is_acted_on_at_once(
    peer: Peer, controller: Controller, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SWEEP_EVERY_S", "CLOCKS_EVERY_S"):
        monkeypatch.setattr(loop, name, 1e6)
    peer.beat(leaving=True)
    for _ in range(3):
        controller.turn()
    run = submit(alice)
    for _ in range(3):
        controller.turn()
    assert state_of(run) == State.QUEUED
    peer.beat()
    controller.turn()
    assert state_of(run) == State.STARTING


@own_writes_are_told
@pytest.mark.django_db
def test_a_queue_in_front_of_a_full_fleet_is_not_read(
    peer: Peer, controller: Controller, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SWEEP_EVERY_S", 0.0)
    first = submit(alice, dp=2)
    attempt = started(peer, controller, first)
    second = submit(alice)
    asked = " ".join(query["sql"] for query in asked_in_a_turn(controller))
    assert "fleet_worker" in asked and "runs_checkpoint" not in asked
    assert state_of(second) == State.QUEUED
    peer.ended(attempt.pk)
    controller.turn()
    assert state_of(second) == State.STARTING
