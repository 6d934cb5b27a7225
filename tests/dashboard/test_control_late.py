"""Records that are stored after others of their file: each finds its place, and overwrites nothing newer."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.control.controller import Controller
from dashboard.fleet.dead_letters import discard, store_again
from dashboard.runs import left_out, selectors
from dashboard.runs.models import (
    Attempt,
    Checkpoint,
    DeadLetter,
    LogChunk,
    RankInfo,
    Run,
    SeriesChunk,
    SpanChunk,
)
from tests.dashboard.fake_worker import Peer, points_frame, spans_frame
from tests.dashboard.test_control_restoring import asked, frame, put_aside, told
from tests.dashboard.test_dead_letters import placed, steps

pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt(alice: Any) -> Attempt:
    return placed(alice)


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
    put_aside(peer, controller, attempt, frame("left_out", step=2, why="No space left on device"))
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
    assert list(Checkpoint.objects.values_list("step", flat=True)) == [3] and not left_out.warning(run)
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
