"""Records that were set aside are stored again when an admin asks for it: each finds its place, and overwrites nothing
newer."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import OperationalError, connection

from dashboard.control import dead_letters, restoring
from dashboard.control.controller import Controller
from dashboard.control.dead_letters import TRIES
from dashboard.control.wire import Entry
from dashboard.fleet.dead_letters import discard, store_again
from dashboard.runs import selectors
from dashboard.runs.models import (
    Attempt,
    Checkpoint,
    Cursor,
    DeadLetter,
    LogChunk,
    RankInfo,
    Run,
    SeriesChunk,
    SpanChunk,
)
from parallel_core.observe.records import encode
from tests.dashboard.database_faults import END_CONNECTION, mend, refuse
from tests.dashboard.fake_worker import Peer, points_frame, spans_frame
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


def test_points_find_their_places_in_the_chunks(
    peer: Peer, controller: Controller, attempt: Attempt, admin: Any
) -> None:
    peer.send(attempt.pk, points_frame(2, 500))
    put_aside(peer, controller, attempt, points_frame(0, 2))
    put_aside(peer, controller, attempt, points_frame(502, 3))
    peer.send(attempt.pk, points_frame(505, 5))
    put_aside(peer, controller, attempt, points_frame(510, 2))
    controller.turn()
    asked(admin)
    controller.turn()
    assert steps(attempt) == list(range(512))
    assert selectors.series(attempt.run, "loss").value.tolist() == [step + 0.5 for step in range(512)]
    chunks = SeriesChunk.objects.order_by("first_step").values_list("first_step", "last_step", "count", "closed")
    assert list(chunks) == [(0, 504, 505, True), (505, 511, 7, False)]
    assert Run.objects.get().loss == 511.5, "the newest of all"
    peer.send(attempt.pk, points_frame(512, 1))
    controller.turn()
    assert steps(attempt) == list(range(513))


def test_what_was_told_later_stays(peer: Peer, controller: Controller, attempt: Attempt, admin: Any) -> None:
    put_aside(peer, controller, attempt, points_frame(0, 2))
    put_aside(peer, controller, attempt, frame("hello", pid=5) + frame("phase", phase="warmup"))
    put_aside(peer, controller, attempt, frame("checkpoint", step=1, bytes=9, seconds=0.1, kept=[1]))
    put_aside(peer, controller, attempt, frame("fault", error="ValueError", message="first"))
    peer.send(attempt.pk, points_frame(2, 2) + frame("phase", phase="timed"))
    peer.send(attempt.pk, frame("checkpoint", step=3, bytes=9, seconds=0.1, kept=[3]))
    peer.send(attempt.pk, frame("fault", error="ValueError", message="later"))
    controller.turn()
    asked(admin)
    controller.turn()
    assert not DeadLetter.objects.exists() and steps(attempt) == [0, 1, 2, 3]
    run, info = Run.objects.get(), RankInfo.objects.get()
    assert (run.step, run.loss) == (3, 3.5)
    assert (info.phase, info.hello["pid"]) == ("timed", 5)
    assert list(Checkpoint.objects.values_list("step", flat=True)) == [3]
    assert Attempt.objects.get().report["faults"]["0"]["message"] == "later"


def test_of_what_nothing_later_was_told_it_is_the_newest(
    peer: Peer, controller: Controller, attempt: Attempt, admin: Any
) -> None:
    peer.send(attempt.pk, frame("checkpoint", step=1, bytes=9, seconds=0.1, kept=[1]))
    controller.turn()
    put_aside(peer, controller, attempt, points_frame(0, 4) + frame("phase", phase="timed") + spans_frame(3))
    put_aside(peer, controller, attempt, frame("checkpoint", step=3, bytes=9, seconds=0.1, kept=[3]))
    asked(admin)
    controller.turn()
    run = Run.objects.get()
    assert (run.step, run.loss, RankInfo.objects.get().phase) == (3, 3.5, "timed")
    assert list(Checkpoint.objects.values_list("step", flat=True)) == [3]
    assert SpanChunk.objects.get().step == 3


def test_parts_of_the_log_find_their_places(peer: Peer, controller: Controller, attempt: Attempt, admin: Any) -> None:
    peer.send(attempt.pk, b"one ", channel="log")
    controller.turn()
    put_aside(peer, controller, attempt, b"two ", "log")
    peer.send(attempt.pk, b"three ", channel="log")
    put_aside(peer, controller, attempt, b"four", "log")
    controller.turn()
    assert "two" not in selectors.log(attempt.run, 0).text
    asked(admin)
    controller.turn()
    assert selectors.log(attempt.run, 0).text == "one two three four"
    assert [bytes(one.data) for one in LogChunk.objects.order_by("start")] == [b"one ", b"two ", b"three four"]


def text(first: int, tokens: list[int]) -> bytes:
    seconds = [0.1] * (len(tokens) - (first == 0))
    return frame("generated", first=first, tokens=[tokens], prefill=0.5, seconds=seconds, kv_bytes=first)


def test_generated_text_is_put_in_order_or_refused(
    peer: Peer, controller: Controller, attempt: Attempt, admin: Any
) -> None:
    peer.send(attempt.pk, text(0, [1, 2]))
    controller.turn()
    put_aside(peer, controller, attempt, text(2, [3]))
    peer.send(attempt.pk, text(3, [4, 5]))
    controller.turn()
    put_aside(peer, controller, attempt, text(5, [6]))
    peer.send(attempt.pk, text(6, [7]))
    controller.turn()
    second = DeadLetter.objects.latest("start")
    store_again(letters=DeadLetter.objects.filter(pk=second.pk), user=admin)
    controller.turn()
    assert "store those first" in DeadLetter.objects.get(pk=second.pk).error
    asked(admin)
    controller.turn()
    assert not DeadLetter.objects.exists()
    held = RankInfo.objects.get().generated
    assert held["tokens"] == [[1, 2, 3, 4, 5, 6, 7]] and len(held["seconds"]) == 6 and held["kv_bytes"] == 6


def test_text_is_not_put_behind_what_was_discarded(
    peer: Peer, controller: Controller, attempt: Attempt, admin: Any
) -> None:
    for first in (0, 1):
        put_aside(peer, controller, attempt, text(first, [first]))
    peer.send(attempt.pk, text(2, [2]))
    controller.turn()
    assert discard(letters=DeadLetter.objects.filter(start=0), user=admin) == 1
    asked(admin)
    controller.turn()
    assert "its place in the text is not known" in DeadLetter.objects.get().error
    assert told(attempt, "records_discarded") == [("root discarded 1 record that had been set aside.", "root")]


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
