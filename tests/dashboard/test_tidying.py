"""What the controller deletes when nobody waits for it: measurements of deleted runs, in small steps, and sessions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.db import OperationalError, connection
from django.utils import timezone

from dashboard.control import tidying
from dashboard.control.controller import Controller
from dashboard.control.leisure import SLICES, TIDY_AGAIN_S
from dashboard.fleet import worker_views
from dashboard.fleet.timeline import timeline
from dashboard.runs import removal
from dashboard.runs.models import Attempt, Cursor, DeadLetter, LogChunk, OpenWaits, RankInfo, Run, SeriesChunk, State
from dashboard.runs.stored import CHUNKS
from tests.dashboard import factory
from tests.dashboard.database_faults import END_CONNECTION, mend, refuse
from tests.dashboard.fake_worker import Peer, points_frame
from tests.dashboard.test_control import SHORT_LEASE, started, submit, until
from tests.dashboard.test_control_changes import asked_in_a_turn

pytestmark = pytest.mark.django_db
SERIES = "runs_serieschunk"


def ended(owner: Any, points: int = 1200) -> Run:
    """A run that ended with so many points, and some of everything else."""
    run = factory.queued(owner)
    attempt = factory.start(run)
    factory.feed(attempt, 0, points_frame(0, points))
    factory.feed_steps(attempt, 12)
    about: dict[str, Any] = {"attempt": attempt, "rank": 0}
    LogChunk.objects.create(**about, start=0, end=9, data=b"123456789")
    OpenWaits.objects.create(**about, steps=1, size=3, data=b"abc")
    Cursor.objects.create(**about, channel="log", offset=9)
    DeadLetter.objects.create(**about, channel="log", start=9, end=10, data=b"x")
    Attempt.objects.filter(pk=attempt.pk).update(over=True, ended_at=timezone.now())
    Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED)
    return Run.objects.get(pk=run.pk)


def rows() -> int:
    """How much of what was measured is stored."""
    return sum(kind.objects.count() for kind, _ in CHUNKS) + OpenWaits.objects.count()


def test_nobody_sees_what_was_measured_of_a_deleted_run(alice: Any) -> None:
    run, other = ended(alice), ended(alice)
    before = rows()
    removal.delete(runs=[run.pk], user=alice)
    assert rows() == before, "no deletion keeps the yard waiting for that"
    for kind, of_run in ((Attempt, "run"), (DeadLetter, "attempt__run"), (Run, "pk")):
        assert list(kind.objects.values_list(of_run, flat=True)) == [other.pk]
    assert timeline(worker_views.workers(), 24).total == 1
    seen = SeriesChunk.objects.filter(attempt__run__in=Run.objects.all())
    assert set(seen.values_list("attempt__run", flat=True)) == {other.pk}
    assert seen.count() < SeriesChunk.objects.count(), "the rest is of the deleted one"


def test_it_goes_in_steps_of_limited_size_and_that_of_others_stays(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, other = ended(alice), ended(alice)
    kept = rows() // 2
    removal.delete(runs=[run.pk], user=alice)
    largest = max(len(chunk.data) for chunk in SeriesChunk.objects.all())
    monkeypatch.setattr(tidying, "SLICE_BYTES", largest)
    left = [rows()]
    while tidying.delete_slice():
        left.append(rows())
    assert left[-1] == kept and len(set(left)) > 6
    assert list(Attempt.every.values_list("run", flat=True)) == [other.pk]
    assert {kind.objects.count() for kind in (Cursor, RankInfo)} == {1}
    assert not tidying.delete_slice(), "there is nothing more"


def test_a_chunk_larger_than_a_step_goes_alone(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended(alice)
    removal.delete(runs=[run.pk], user=alice)
    monkeypatch.setattr(tidying, "SLICE_BYTES", 1)
    before = rows()
    assert tidying.delete_slice() and rows() == before - 1


def test_the_controller_goes_on_where_another_was_killed(
    alice: Any, peer: Peer, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bit in each turn, without a look at the queue each time."""
    run = ended(alice)
    for _ in range(3):
        controller.turn()
    removal.delete(runs=[run.pk], user=alice)
    monkeypatch.setattr(tidying, "SLICE_BYTES", 1)
    tidying.delete_slice()
    monkeypatch.setattr("dashboard.control.leisure.TIDYING_S", 0.0)
    successor = Controller()
    for _ in range(3):
        successor.turn()
    before = rows()
    asked = " ".join(query["sql"] for query in asked_in_a_turn(successor))
    assert rows() == before - 1 and "fleet_worker" not in asked
    monkeypatch.undo()
    for _ in range(3):
        successor.turn()
    assert rows() == 0 and not Attempt.every.exists()


def test_what_cannot_be_deleted_now_stops_nothing_else(
    alice: Any, peer: Peer, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> bool:
        raise ValueError("a damaged page")

    what = "delete what was measured of deleted runs"
    removal.delete(runs=[ended(alice).pk], user=alice)
    with monkeypatch.context() as patch:
        patch.setitem(SLICES, what, broken)
        for _ in range(2):
            controller.turn()
    (failure,) = controller._guard.failing
    assert failure["what"] == what and failure["times"] >= 1
    assert failure["times"] == 1, "it is not tried in each turn"
    assert rows() > 0
    controller._leisure._last[what] -= TIDY_AGAIN_S
    for _ in range(3):
        controller.turn()
    assert rows() == 0 and not controller._guard.failing


@pytest.fixture
def kept_chunk(transactional_db: None) -> Iterator[None]:
    """No chunk of a series can be deleted, as where its page of the disk cannot be read."""
    refuse(SERIES, "true", operational=True, on="DELETE")
    yield
    mend(SERIES)


def test_what_the_disk_does_not_give_back_holds_up_no_lease(kept_chunk: None, peer: Peer, alice: Any) -> None:
    gone = ended(alice)
    controller = Controller(lease=SHORT_LEASE)
    run = submit(alice)
    attempt = started(peer, controller, run)
    removal.delete(runs=[gone.pk], user=alice)
    until(controller, lambda: Attempt.objects.get(pk=attempt.pk).over)
    assert Attempt.objects.get(pk=attempt.pk).cause == "worker_lost"
    (failure,) = controller._guard.failing
    assert failure["what"] == "delete what was measured of deleted runs" and failure["times"] == 1
    assert SeriesChunk.objects.filter(attempt__run=gone.pk).exists()


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has no connection to lose")
@pytest.mark.django_db(transaction=True)
def test_what_ends_the_connection_is_tried_only_now_and_then(peer: Peer, controller: Controller, alice: Any) -> None:
    """The lock of the controller goes with the connection, so the turn ends; the next ones do without."""
    gone = ended(alice)
    refuse(SERIES, "true", does=END_CONNECTION, on="DELETE")
    try:
        removal.delete(runs=[gone.pk], user=alice)
        with pytest.raises(OperationalError):
            until(controller, lambda: False)
        connection.close()
        for _ in range(3):
            controller.turn()
        assert rows() > 0 and not controller._guard.failing
    finally:
        mend(SERIES)


@pytest.mark.skipif(connection.vendor != "sqlite", reason="a setting of SQLite")
def test_what_is_deleted_is_not_overwritten() -> None:
    with connection.cursor() as cursor:
        assert cursor.execute("PRAGMA secure_delete").fetchone() == (0,)


def test_expired_sessions_are_deleted(peer: Peer, controller: Controller) -> None:
    now = timezone.now()
    for name, expires in (("old", now - timedelta(seconds=1)), ("new", now + timedelta(days=1))):
        Session.objects.create(session_key=name, session_data="", expire_date=expires)
    controller.turn()
    assert list(Session.objects.values_list("session_key", flat=True)) == ["new"]
