"""Records that were set aside are stored again when an admin asks for it, each once, whoever is killed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import OperationalError, connection

from dashboard.control import dead_letters, restoring
from dashboard.control.controller import Controller
from dashboard.control.dead_letters import TRIES
from dashboard.control.summary import unsummarised
from dashboard.control.wire import Entry
from dashboard.fleet.dead_letters import discard, store_again
from dashboard.runs import selectors
from dashboard.runs.models import (
    Attempt,
    Cursor,
    DeadLetter,
    Run,
    State,
)
from parallel_core.observe.record_files import encode
from tests.dashboard.database_faults import END_CONNECTION, mend, refuse
from tests.dashboard.fake_worker import Peer, points_frame
from tests.dashboard.test_dead_letters import REFUSED, Killed, Killer, placed, steps
from workers.contract import EVENTS, Channel

pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt(alice: Any) -> Attempt:
    return placed(alice)


def put_aside(peer: Peer, controller: Controller, attempt: Attempt, data: bytes, channel: Channel = "events") -> None:
    """What the rank writes next is set aside, as after TRIES failures, once all before it is stored."""
    if peer.redis.xlen(EVENTS):
        controller.turn()
    start, end = peer.write(attempt.pk, data, channel=channel)
    body = {"attempt": attempt.pk, "rank": 0, "channel": channel, "start": start, "end": end}
    dead_letters._set_aside(Entry(b"1-1", "yard-a", "boot-1", "batch", body, data), ValueError("made up"))


def frame(kind: str, **header: Any) -> bytes:
    return encode({"kind": kind, "rank": 0, "t": 1.0, **header})


def asked(user: Any) -> None:
    """An admin asks for all of them."""
    assert store_again(letters=DeadLetter.objects.all(), user=user) == DeadLetter.objects.count()


def told(attempt: Attempt, kind: str) -> list[tuple[str, Any]]:
    return list(attempt.run.events.filter(kind=kind).values_list("text", "actor__username"))


def test_a_fault_that_was_mended_leaves_no_trace(
    peer: Peer, controller: Controller, attempt: Attempt, admin: Any
) -> None:
    refuse("runs_serieschunk", "NEW.name = 'other'")
    begin, end = peer.write(attempt.pk, points_frame(0, 2) + points_frame(0, 4, "other") + points_frame(2, 2))
    for _ in range(TRIES):
        peer.publish(attempt.pk, begin, end)
        controller.turn()
    assert steps(attempt) == [0, 1, 2, 3] and DeadLetter.objects.count() == 1
    mend("runs_serieschunk")
    controller.turn()
    assert DeadLetter.objects.count() == 1, "nobody has asked"
    asked(admin)
    controller.turn()
    assert not DeadLetter.objects.exists()
    assert selectors.series(attempt.run, "other").step.tolist() == [0, 1, 2, 3]
    assert Cursor.objects.get().offset == end
    assert told(attempt, "store_again") == [("root asked to store 1 record again that had been set aside.", "root")]
    assert told(attempt, "stored_again") == [("1 record that had been set aside was stored after all.", None)]


def test_what_is_refused_again_stays_with_its_new_error_and_delays_no_other(
    peer: Peer, controller: Controller, attempt: Attempt, admin: Any
) -> None:
    put_aside(peer, controller, attempt, REFUSED)
    put_aside(peer, controller, attempt, points_frame(0, 2))
    asked(admin)
    controller.turn()
    assert steps(attempt) == [0, 1]
    (kept,) = DeadLetter.objects.all()
    assert bytes(kept.data) == REFUSED and kept.error.startswith("UnicodeEncodeError")
    assert kept.tried_at and kept.tried_at > kept.at and kept.store_asked_at is None
    controller._last.clear()
    controller.turn()
    kept_still = DeadLetter.objects.get()
    assert kept_still.tried_at == kept.tried_at, "once for each request"
    said = "1 record that had been set aside was stored after all. 1 record that had been set aside was refused again."
    assert told(attempt, "stored_again") == [(said, None)]


def test_an_operational_error_of_one_holds_up_nothing(
    peer: Peer, controller: Controller, attempt: Attempt, admin: Any
) -> None:
    refuse("runs_serieschunk", "NEW.name = 'other'", operational=True)
    put_aside(peer, controller, attempt, points_frame(0, 2, "other"))
    asked(admin)
    peer.send(attempt.pk, points_frame(0, 2))
    controller.turn()
    assert steps(attempt) == [0, 1] and DeadLetter.objects.get().error.startswith("OperationalError")


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no connection to lose")
@pytest.mark.django_db(transaction=True)
def test_one_that_ends_its_connection_is_tried_once(
    peer: Peer, controller: Controller, attempt: Attempt, admin: Any
) -> None:
    refuse("runs_serieschunk", "NEW.name = 'other'", does=END_CONNECTION)
    try:
        put_aside(peer, controller, attempt, points_frame(0, 2, "other"))
        asked(admin)
        with pytest.raises(OperationalError, match="terminating connection"):
            controller.turn()
        kept = DeadLetter.objects.get()
        assert kept.error.startswith("OperationalError: terminating connection") and kept.store_asked_at is None
        controller.turn()
    finally:
        mend("runs_serieschunk")


def test_bytes_that_are_no_records_stay_where_they_are(
    peer: Peer, controller: Controller, attempt: Attempt, admin: Any
) -> None:
    for data in (b"no record at all", points_frame(0, 3)[:-5]):
        put_aside(peer, controller, attempt, data)
    asked(admin)
    controller.turn()
    assert DeadLetter.objects.filter(error__startswith="ValueError", tried_at__isnull=False).count() == 2
    assert not told(attempt, "unreadable")


def test_a_controller_killed_at_any_write_stores_each_once(
    peer: Peer, controller: Controller, alice: Any, admin: Any
) -> None:
    for at in itertools.count(0):
        attempt, killer = placed(alice), Killer(at)
        peer.send(attempt.pk, points_frame(0, 1))
        controller.turn()
        for first in (1, 2):
            put_aside(peer, controller, attempt, points_frame(first, 1))
        asked(admin)
        try:
            with connection.execute_wrapper(killer):
                restoring.store_asked()
        except Killed:
            pass
        kept = DeadLetter.objects.filter(attempt=attempt).count()
        assert len(steps(attempt)) + kept == 3, at
        store_again(letters=DeadLetter.objects.filter(attempt=attempt), user=admin)
        restoring.store_asked()
        assert steps(attempt) == [0, 1, 2] and not DeadLetter.objects.exists(), at
        if killer.done < at:
            break
    assert at > 6


def test_a_run_that_is_over_is_summarised_again(
    peer: Peer, controller: Controller, attempt: Attempt, admin: Any
) -> None:
    put_aside(peer, controller, attempt, points_frame(0, 9, "step_time"))
    peer.ended(attempt.pk)
    controller.turn()
    controller.turn()
    assert Attempt.objects.get().settled and Run.objects.get().summary["timed"] is None
    asked(admin)
    controller.turn()
    controller.turn()
    assert Run.objects.get().summary["timed"]["median"] == 6.0, "of the steps after three to warm up"
    assert {order["kind"] for order in peer.orders()} == {"settled"}


def test_so_is_one_whose_worker_was_lost(peer: Peer, controller: Controller, attempt: Attempt, admin: Any) -> None:
    """Its sizes are never told; and who asks while the controller starts is not passed over."""
    put_aside(peer, controller, attempt, points_frame(0, 9, "step_time"))
    Run.objects.update(state=State.FAILED, summary={"timed": None})
    asked(admin)
    again = Controller()
    for _ in range(3):
        again.turn()
    assert Run.objects.get().summary["timed"]["median"] == 6.0


def test_a_controller_that_is_killed_then_leaves_the_summary_to_the_next(
    peer: Peer, controller: Controller, attempt: Attempt, admin: Any
) -> None:
    put_aside(peer, controller, attempt, points_frame(0, 9, "step_time"))
    Run.objects.update(state=State.FAILED, summary={"timed": None})
    asked(admin)
    restoring.store_asked()
    assert unsummarised() == {attempt.run_id}


def test_many_are_stored_some_at_a_time(
    peer: Peer, controller: Controller, attempt: Attempt, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "MOST_AT_ONCE", 2)
    for first in range(5):
        put_aside(peer, controller, attempt, points_frame(first, 1))
    asked(admin)
    counts = []
    for _ in range(3):
        controller.turn()
        counts.append(DeadLetter.objects.count())
    assert counts == [3, 1, 0] and steps(attempt) == list(range(5))


def test_only_admins_decide(peer: Peer, controller: Controller, attempt: Attempt, alice: Any) -> None:
    put_aside(peer, controller, attempt, points_frame(0, 1))
    for decide in (store_again, discard):
        with pytest.raises(PermissionDenied, match="Only admins may store again or discard"):
            decide(letters=DeadLetter.objects.all(), user=alice)
    assert DeadLetter.objects.get().store_asked_at is None
