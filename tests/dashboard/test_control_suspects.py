"""Entries at which the database always has an operational error, as if it were away: they hold up the others for a
stated time only. While it is away, all wait.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connection

from dashboard.control import suspects
from dashboard.control.controller import Controller
from dashboard.control.lock import lock_of_database
from dashboard.control.suspects import LEAST_TRIES, PATIENCE_AGAIN_S, PATIENCE_S, TRIES_TOGETHER
from dashboard.fleet.models import ControllerState
from dashboard.runs.models import Attempt, DeadLetter, LogChunk, Run, State
from tests.dashboard.database_faults import END_CONNECTION, mend, refuse
from tests.dashboard.fake_worker import Peer, points_frame
from tests.dashboard.test_dead_letters import placed, steps
from workers.contract import EVENTS

pytestmark = pytest.mark.django_db
REFUSED = points_frame(0, 1, name="refused")
BATCH = points_frame(2, 1) + REFUSED + points_frame(3, 1)
SERIES, SCRATCH = "runs_serieschunk", "fleet_controllerstate"


class Clock:
    """Seconds, which pass only at failed turns."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(suspects, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


@pytest.fixture
def attempt(alice: Any) -> Attempt:
    return placed(alice)


def turns(controller: Controller, clock: Clock, seconds: float, each: float = 2.0) -> float:
    """Turns, with `each` seconds after each failed one, until one succeeds or `seconds` are over; returns how many
    passed."""
    begin = clock.now
    while clock.now - begin < seconds:
        try:
            controller.turn()
        except OperationalError:
            controller._reader.start_over()
            clock.now += each
        else:
            break
    return clock.now - begin


def waiting(peer: Peer) -> int:
    return int(peer.redis.xlen(EVENTS))


def test_a_record_that_alone_fails_for_long_is_set_aside_and_the_rest_goes_on(
    peer: Peer, controller: Controller, clock: Clock, alice: Any, attempt: Attempt
) -> None:
    refuse(SERIES, "NEW.name = 'refused'", operational=True)
    other = placed(alice)
    peer.send(attempt.pk, points_frame(0, 2))
    peer.send(attempt.pk, BATCH)
    peer.send(attempt.pk, points_frame(4, 1))
    peer.send(other.pk, points_frame(0, 3))
    turns(controller, clock, PATIENCE_S)
    assert not DeadLetter.objects.exists() and waiting(peer) == 4, "nothing is acknowledged"
    assert (steps(attempt), steps(other)) == ([0, 1], []), "in order"
    passed = turns(controller, clock, 60)
    assert passed <= 2.0 * TRIES_TOGETHER, "its records are not waited for once more"
    assert (steps(attempt), steps(other), waiting(peer)) == (list(range(5)), [0, 1, 2], 0)
    (kept,) = DeadLetter.objects.all()
    assert bytes(kept.data) == REFUSED and kept.error.startswith("OperationalError: ")
    begin = len(points_frame(0, 2) + points_frame(2, 1))
    assert (kept.start, kept.end) == (begin, begin + len(REFUSED))
    said = attempt.run.events.get(kind="set_aside").text
    assert "could not be stored and were set aside. The first error: OperationalError" in said
    assert not peer.orders(), "what is in the stream is not asked for again"


def test_two_tries_that_each_waited_for_a_lock_do_not_set_a_record_aside(
    peer: Peer, controller: Controller, clock: Clock, attempt: Attempt
) -> None:
    refuse(SERIES, "NEW.name = 'refused'", operational=True)
    peer.send(attempt.pk, BATCH)
    turns(controller, clock, PATIENCE_S * (TRIES_TOGETHER + LEAST_TRIES - 2), each=PATIENCE_S)
    assert not DeadLetter.objects.exists() and waiting(peer) == 1
    mend(SERIES)
    assert turns(controller, clock, PATIENCE_S) == 0
    assert steps(attempt) == [2, 3] and not DeadLetter.objects.exists()


@pytest.mark.skipif(connection.vendor != "sqlite", reason="SQLite's own limit stands for a full disk")
def test_on_a_full_disk_all_waits_however_long_though_small_rows_find_room(
    peer: Peer, controller: Controller, clock: Clock, attempt: Attempt
) -> None:
    def limit(pages: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA max_page_count = {pages}")

    log = b"x" * (256 << 10)
    controller.turn()
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA page_count")
        (pages,) = cursor.fetchone()
    peer.send(attempt.pk, log, channel="log")
    limit(pages)
    try:
        assert suspects.takes_writes()
        passed = turns(controller, clock, 3 * PATIENCE_S)
    finally:
        limit("1073741823")
    assert passed >= 3 * PATIENCE_S and waiting(peer) == 1
    assert turns(controller, clock, 10) == 0 and waiting(peer) == 0
    assert not DeadLetter.objects.exists() and not attempt.run.events.filter(kind="set_aside").exists()
    assert b"".join(bytes(row.data) for row in LogChunk.objects.filter(attempt=attempt)) == log


def test_while_no_write_is_taken_all_waits_however_long(
    peer: Peer, controller: Controller, clock: Clock, attempt: Attempt
) -> None:
    refuse(SERIES, "NEW.name IN ('refused', 'loss')", operational=True)
    refuse(SCRATCH, f"NEW.id = {suspects.SCRATCH_ROW}", operational=True)
    peer.send(attempt.pk, BATCH)
    turns(controller, clock, 3 * PATIENCE_S)
    assert not DeadLetter.objects.exists() and waiting(peer) == 1 and steps(attempt) == []
    mend(SERIES)
    mend(SCRATCH)
    assert turns(controller, clock, 10) == 0
    assert steps(attempt) == [2, 3] and not DeadLetter.objects.exists()
    assert not ControllerState.objects.filter(pk=suspects.SCRATCH_ROW).exists()


def test_what_failed_before_the_database_went_away_is_timed_anew(
    peer: Peer, controller: Controller, clock: Clock, attempt: Attempt
) -> None:
    refuse(SERIES, "NEW.name = 'refused'", operational=True)
    peer.send(attempt.pk, BATCH)
    turns(controller, clock, 0.9 * PATIENCE_S)
    refuse(SCRATCH, f"NEW.id = {suspects.SCRATCH_ROW}", operational=True)
    turns(controller, clock, 1)
    mend(SCRATCH)
    turns(controller, clock, 0.9 * PATIENCE_S)
    assert not DeadLetter.objects.exists()
    turns(controller, clock, PATIENCE_S)
    assert DeadLetter.objects.count() == 1


def test_the_next_of_the_same_attempt_holds_up_the_others_for_a_moment(
    peer: Peer, controller: Controller, clock: Clock, alice: Any, attempt: Attempt
) -> None:
    refuse(SERIES, "NEW.name = 'refused'", operational=True)
    peer.send(attempt.pk, BATCH)
    assert PATIENCE_S <= turns(controller, clock, 60) <= PATIENCE_S + 2.0 * TRIES_TOGETHER
    peer.send(attempt.pk, BATCH)
    assert PATIENCE_AGAIN_S <= turns(controller, clock, 60, each=0.5) < PATIENCE_AGAIN_S + 2
    assert DeadLetter.objects.count() == 2
    peer.send(placed(alice).pk, BATCH)
    assert turns(controller, clock, 60) >= PATIENCE_S, "another attempt is not judged by this one"


def test_an_entry_without_records_is_dropped_and_the_rest_goes_on(
    peer: Peer, controller: Controller, clock: Clock, attempt: Attempt
) -> None:
    refuse("runs_event", "NEW.kind = 'succeeded'", operational=True)
    peer.send(attempt.pk, points_frame(0, 2))
    peer.ended(attempt.pk)
    peer.send(attempt.pk, points_frame(2, 2))
    turns(controller, clock, PATIENCE_S)
    assert waiting(peer) == 3
    turns(controller, clock, 60)
    assert waiting(peer) == 0 and steps(attempt) == [0, 1, 2, 3]
    assert Run.objects.get().state == State.RUNNING
    mend("runs_event")
    peer.ended(attempt.pk)  # as its worker says until it is answered
    controller.turn()
    assert Run.objects.get().state == State.SUCCEEDED and Attempt.objects.get().settled


def test_a_record_that_cannot_be_kept_either_waits_and_none_is_kept_twice(
    peer: Peer, controller: Controller, clock: Clock, attempt: Attempt
) -> None:
    """As of a disk on which there is room for little."""
    refuse(SERIES, "NEW.name = 'refused'", operational=True)
    refuse("runs_deadletter", f"NEW.start > {len(REFUSED)}", operational=True)
    peer.send(attempt.pk, REFUSED + points_frame(0, 1) + REFUSED + points_frame(1, 1))
    turns(controller, clock, 2 * PATIENCE_S)
    assert waiting(peer) == 1 and DeadLetter.objects.count() == 1 and steps(attempt) == [0]
    mend("runs_deadletter")
    turns(controller, clock, 60)
    assert waiting(peer) == 0 and steps(attempt) == [0, 1]
    assert [bytes(one.data) for one in DeadLetter.objects.all()] == [REFUSED, REFUSED]


def test_a_moments_error_costs_nothing(peer: Peer, controller: Controller, clock: Clock, attempt: Attempt) -> None:
    refuse(SERIES, "NEW.name = 'refused'", operational=True)
    peer.send(attempt.pk, BATCH)
    turns(controller, clock, 0.5 * PATIENCE_S)
    mend(SERIES)
    assert turns(controller, clock, 60) == 0
    assert steps(attempt) == [2, 3] and not DeadLetter.objects.exists() and waiting(peer) == 0


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no connection to lose")
@pytest.mark.django_db(transaction=True)
def test_a_record_that_ends_its_connection_is_set_aside_by_who_has_the_lock(
    peer: Peer, controller: Controller, clock: Clock, attempt: Attempt
) -> None:
    refuse(SERIES, "NEW.name = 'refused'", does=END_CONNECTION)
    peer.send(attempt.pk, BATCH)
    lock, begin = lock_of_database(), clock.now
    try:
        while waiting(peer) and clock.now - begin < 5 * PATIENCE_S:
            try:
                assert lock.hold()
                held = connection.connection
                controller.turn()
                assert connection.connection is held, "what is stored is stored under the lock"
            except OperationalError:
                controller._reader.start_over()
                connection.close()
                clock.now += 2.0
        assert PATIENCE_S <= clock.now - begin < 2 * PATIENCE_S
        assert [bytes(one.data) for one in DeadLetter.objects.all()] == [REFUSED] and steps(attempt) == [2, 3]
    finally:
        lock.release()
        mend(SERIES)
