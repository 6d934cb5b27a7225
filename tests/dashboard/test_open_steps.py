"""Steps that wait for another rank's records: how many rows and bytes they are, and what a transaction reads."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dashboard.control import step_shares
from dashboard.control.step_shares import share_points
from dashboard.runs.models import Attempt, OpenWaits
from tests.dashboard import factory
from tests.dashboard.fake_worker import waits_of

STEP = 48 + 23
"""Bytes of a step of `waits_of`."""


@pytest.fixture
def attempt(alice: Any, worker: Any) -> Attempt:
    """A running attempt of two ranks; the tests leave rank 1 silent until the end."""
    return factory.start(factory.queued(alice, {"dp": 2}))


def held() -> list[tuple[int, int]]:
    """First and last step of each row of rank 0."""
    return list(OpenWaits.objects.filter(rank=0).values_list("first_step", "last_step"))


@pytest.mark.parametrize(
    ("world", "bound"),
    [
        (1, 64 << 20),
        (2, 32 << 20),
        (16, 4 << 20),
        (17, 4 << 20),
        (64, 4 << 20),
        (65, (256 << 20) // 65),
        (512, 512 << 10),
    ],
)
def test_what_each_rank_may_have(world: int, bound: int) -> None:
    assert step_shares._bound(world) == bound
    assert world * step_shares._bound(world) <= 256 << 20


@pytest.mark.full
@pytest.mark.django_db
def test_many_arrivals_are_few_rows(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full row for every ROW_BYTES, and some that are not, each at least twice as large as the next."""
    monkeypatch.setattr(step_shares, "ROW_BYTES", 64 * STEP)
    for step in range(300):
        share_points(attempt, {0: [waits_of([step])]})
        assert OpenWaits.objects.count() <= (step + 1) // 64 + 6
    rows = held()
    assert [first for first, _ in rows] == [0, *(last + 1 for _, last in rows[:-1])] and rows[-1][1] == 299
    points = share_points(attempt, {1: [waits_of(range(300))]})
    assert points[0, "bubble_share"][0]["step"].tolist() == list(range(300)) and not held()


@pytest.mark.full
@pytest.mark.django_db
def test_at_the_bound_the_oldest_rows_go(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank has at most its bound, and at least seven eighths of it: a row has at most two of its LEAST_ROWS parts."""
    monkeypatch.setattr(step_shares, "_bound", lambda world: 160 * STEP)
    for step in range(0, 600, 3):
        share_points(attempt, {0: [waits_of(range(step, step + 3))]})
        first, last = held()[0][0], held()[-1][1]
        assert last == step + 2 and min(last + 1, 140) <= last + 1 - first <= 160
        assert OpenWaits.objects.count() <= 16 + 4


@pytest.mark.django_db
def test_a_full_row_is_neither_read_nor_written(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_shares, "ROW_BYTES", 8 * STEP)
    share_points(attempt, {0: [waits_of(range(16))]})
    full = set(OpenWaits.objects.values_list("pk", flat=True))
    share_points(attempt, {0: [waits_of([16, 17])]})
    with CaptureQueriesContext(connection) as queries:
        share_points(attempt, {0: [waits_of([18, 19])]})
    found = [one["sql"] for one in queries if one["sql"].startswith("SELECT") and '"data"' in one["sql"]]
    assert full < set(OpenWaits.objects.values_list("pk", flat=True))
    assert held() == [(0, 7), (8, 15), (16, 19)]
    assert len(found) == 1 and '"id" IN' in found[0], "by their ids, the rows that are joined with the new steps"
    OpenWaits.objects.filter(pk__in=full).update(data=b"spoilt")
    share_points(attempt, {0: [waits_of([20])]})
    assert OpenWaits.objects.filter(pk__in=full, data=b"spoilt").count() == 2


@pytest.mark.django_db
def test_steps_that_have_their_points_are_not_written_again(attempt: Attempt) -> None:
    share_points(attempt, {0: [waits_of(range(5))]})
    points = share_points(attempt, {0: [waits_of(range(5, 8))], 1: [waits_of(range(3))]})
    assert points[0, "bubble_share"][0]["step"].tolist() == [0, 1, 2] and held() == [(3, 7)]
