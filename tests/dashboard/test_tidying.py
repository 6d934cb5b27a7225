"""What the controller deletes when nobody waits for it: measurements of deleted runs, in small steps, and sessions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.db import connection
from django.utils import timezone

from dashboard.control import tidying
from dashboard.control.controller import Controller
from dashboard.fleet import selectors as fleet
from dashboard.fleet.timeline import timeline
from dashboard.runs import removal
from dashboard.runs.models import Attempt, Cursor, DeadLetter, LogChunk, OpenWaits, RankInfo, Run, SeriesChunk, State
from dashboard.runs.stored import CHUNKS
from tests.dashboard import factory
from tests.dashboard.fake_worker import Peer, points_frame
from tests.dashboard.test_control_changes import asked_in_a_turn

pytestmark = pytest.mark.django_db


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
    run = ended(alice)
    before = rows()
    removal.delete(runs=[run.pk], user=alice)
    assert rows() == before, "no deletion keeps the yard waiting for that"
    assert not Attempt.objects.exists() and not DeadLetter.objects.exists() and not Run.objects.exists()
    assert timeline(fleet.workers(), 24).total == 0
    assert not SeriesChunk.objects.filter(attempt__run__in=Run.objects.all()).exists()


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
    monkeypatch.setattr("dashboard.control.controller.TIDYING_S", 0.0)
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

    removal.delete(runs=[ended(alice).pk], user=alice)
    with monkeypatch.context() as patch:
        patch.setattr("dashboard.control.controller.delete_slice", broken)
        for _ in range(2):
            controller.turn()
    (failure,) = controller._guard.failing
    assert failure["what"] == "delete what was measured of deleted runs" and failure["times"] >= 1
    assert rows() > 0
    factory.queued(alice)  # whatever is written brings a sweep
    for _ in range(3):
        controller.turn()
    assert rows() == 0 and not controller._guard.failing


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
