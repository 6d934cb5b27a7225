"""Where the time of a step went, as points, once the records of all ranks are there; and what waits until then."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from dashboard.control import step_shares, sweeps
from dashboard.control.controller import Controller
from dashboard.runs import selectors
from dashboard.runs.models import Attempt, OpenWaits, Run, SpanChunk
from parallel_core.observe.record_files import encode
from tests.dashboard.fake_worker import Peer, points_frame, spans_frame, waits_frame
from tests.dashboard.ingested import on_both_devices, steps

pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt(alice: Any) -> Attempt:
    """An attempt that runs on both devices of yard-a."""
    return on_both_devices(alice)


def test_a_whole_traced_step_becomes_one_point_a_share(peer: Peer, controller: Controller, attempt: Attempt) -> None:
    first = peer.write(attempt.pk, spans_frame(10))
    peer.publish(attempt.pk, *first)
    controller.turn()
    assert steps(attempt, "bubble_share") == []  # rank 1 has not delivered the step
    peer.send(attempt.pk, spans_frame(10, rank=1) + spans_frame(20, rank=1), rank=1)
    controller.turn()
    assert steps(attempt, "bubble_share") == [10]
    peer.send(attempt.pk, spans_frame(10) + spans_frame(20))  # step 10 is sent twice
    controller.turn()
    for name in ("bubble_share", "exposed_share", "recompute_share"):
        assert steps(attempt, name) == [10, 20]


def test_every_step_whose_records_have_come_from_all_ranks_becomes_one_point_a_share(
    peer: Peer, controller: Controller, attempt: Attempt
) -> None:
    peer.send(attempt.pk, waits_frame([0, 1, 2], late=100, recompute=40) + waits_frame([3, 4], late=100))
    controller.turn()
    assert steps(attempt, "bubble_share") == []  # rank 1 has not delivered them
    peer.send(attempt.pk, waits_frame([0, 1], rank=1, late=300), rank=1)
    controller.turn()
    assert steps(attempt, "bubble_share") == [0, 1]
    peer.send(attempt.pk, waits_frame([1, 2, 4], rank=1, late=300), rank=1)  # step 1 is sent twice, step 3 never
    controller.turn()
    run = Run.objects.get(pk=attempt.run_id)
    # Rank 0 waits from 100 to 300 ns; from then on both communicate, until 500 ns.
    expected = {"bubble_share": [200 / 2_000] * 4, "exposed_share": [400 / 2_000] * 4}
    for name, values in {**expected, "recompute_share": [40 / 2_000] * 3 + [0]}.items():
        found = selectors.series(run, name)
        assert found.step.tolist() == [0, 1, 2, 4]
        assert found.value.tolist() == pytest.approx(values, abs=1e-12)
        assert found.time.tolist() == [1_700_000_000 + step for step in (0, 1, 2, 4)]
    assert not OpenWaits.objects.exists(), "step 3 of rank 0 waits for nothing any more"


def test_traced_steps_of_a_run_that_measures_every_step_add_no_point(
    peer: Peer, controller: Controller, attempt: Attempt
) -> None:
    for rank in (0, 1):
        peer.send(attempt.pk, spans_frame(10, rank=rank, waits=True), rank=rank)
    controller.turn()
    assert SpanChunk.objects.count() == 2 and steps(attempt, "bubble_share") == []
    for rank in (0, 1):
        peer.send(attempt.pk, waits_frame(range(8, 12), rank), rank=rank)
    controller.turn()
    assert steps(attempt, "bubble_share") == [8, 9, 10, 11]


def test_what_waits_for_a_silent_rank_is_bounded(
    peer: Peer, controller: Controller, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_shares, "MOST_OPEN", 2 * 5 * (48 + 23))
    monkeypatch.setattr(step_shares, "LEAST_OPEN", 0)
    for some in (range(7), range(7, 9), range(9, 11)):
        peer.send(attempt.pk, waits_frame(some))
        controller.turn()
    assert sum(count for *_, count in held_steps()) == 5
    assert all(row.size == len(row.data) for row in OpenWaits.objects.all())
    peer.send(attempt.pk, waits_frame(range(11), rank=1), rank=1)
    controller.turn()
    assert steps(attempt, "bubble_share") == [6, 7, 8, 9, 10], "the newest, of which each rank may have five"


def held_steps() -> list[tuple[int, int, int, int]]:
    return list(OpenWaits.objects.values_list("rank", "first_step", "last_step", "steps"))


def test_a_spoilt_row_that_takes_more_steps_goes(peer: Peer, controller: Controller, attempt: Attempt) -> None:
    peer.send(attempt.pk, waits_frame(range(4)))
    controller.turn()
    OpenWaits.objects.update(data=b"spoilt")
    peer.send(attempt.pk, waits_frame(range(4, 7)))
    controller.turn()
    assert held_steps() == [(0, 4, 6, 3)]


def test_each_of_many_ranks_may_have_some_steps_that_wait(
    peer: Peer, controller: Controller, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_shares, "MOST_OPEN", 2 * (48 + 23))
    monkeypatch.setattr(step_shares, "LEAST_OPEN", 3 * (48 + 23))
    peer.send(attempt.pk, waits_frame(range(7)))
    controller.turn()
    assert [first for _, first, *_ in held_steps()] == [4, 5, 6], "its part alone would be one step"


def test_many_steps_that_came_at_once_are_several_rows(
    peer: Peer, controller: Controller, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the bound whole rows go."""
    monkeypatch.setattr(step_shares, "ROW_BYTES", 3 * (48 + 23))
    peer.send(attempt.pk, waits_frame(range(10)))
    controller.turn()
    assert held_steps() == [(0, 0, 3, 4), (0, 4, 7, 4), (0, 8, 9, 2)]
    peer.send(attempt.pk, waits_frame(range(10), rank=1), rank=1)
    controller.turn()
    assert steps(attempt, "bubble_share") == list(range(10)) and not OpenWaits.objects.exists()


def test_a_row_takes_more_steps_and_goes_when_all_have_their_points(
    peer: Peer, controller: Controller, attempt: Attempt
) -> None:
    seen = list[list[tuple[int, int, int, int]]]()
    for rank, some in ((0, range(4)), (0, range(4, 7)), (1, range(6)), (0, range(7, 9)), (1, range(6, 12))):
        peer.send(attempt.pk, waits_frame(some, rank), rank=rank)
        controller.turn()
        seen.append(held_steps())
    assert seen == [[(0, 0, 3, 4)], [(0, 0, 6, 7)], [(0, 0, 6, 7)], [(0, 0, 6, 7), (0, 7, 8, 2)], [(1, 9, 11, 3)]]
    assert steps(attempt, "bubble_share") == list(range(9))


def test_a_record_of_steps_that_cannot_be_read_costs_no_other(
    peer: Peer, controller: Controller, attempt: Attempt
) -> None:
    lying = encode({"kind": "waits", "rank": 0, "t": 1.0, "steps": 9}, bytes(50))
    peer.send(attempt.pk, points_frame(0, 3) + lying + encode({"kind": "waits", "rank": 0}) + waits_frame([1, 2]))
    peer.send(attempt.pk, waits_frame([0, 1], rank=1), rank=1)
    controller.turn()
    assert steps(attempt) == [0, 1, 2] and steps(attempt, "bubble_share") == [1]
    OpenWaits.objects.update(data=b"spoilt")
    peer.send(attempt.pk, points_frame(3, 3) + waits_frame([3, 4]))
    peer.send(attempt.pk, waits_frame([2, 3], rank=1), rank=1)
    controller.turn()
    assert steps(attempt) == list(range(6)) and not OpenWaits.objects.exists()


@pytest.mark.parametrize("lost", [False, True], ids=["all has come", "the worker is lost"])
def test_what_waits_for_nothing_any_more_goes(peer: Peer, controller: Controller, attempt: Attempt, lost: bool) -> None:
    peer.send(attempt.pk, waits_frame(range(3)))
    if lost:
        peer.write(attempt.pk, points_frame(0, 3))
    peer.ended(attempt.pk)
    controller.turn()
    assert OpenWaits.objects.exists() == lost
    Attempt.objects.update(ended_at=timezone.now() - timedelta(days=sweeps.ASK_AGAIN_DAYS))
    sweeps.sweep_unsettled([])
    assert not OpenWaits.objects.exists()
