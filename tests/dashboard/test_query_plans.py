"""What the controller and the pages ask all the time is found by an index, however much there is of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dashboard.control import step_shares, sweeps
from dashboard.fleet.selectors import live_attempts
from dashboard.fleet.timeline import timeline
from dashboard.runs import metrics, selectors
from dashboard.runs.models import Attempt, OpenWaits, SeriesChunk
from tests.dashboard import factory
from tests.dashboard.fake_worker import points_frame
from tests.dashboard.query_plans import in_words_of_sqlite, plans

pytestmark = [pytest.mark.django_db, in_words_of_sqlite]


@pytest.fixture
def attempt(alice: Any) -> Attempt:
    """With full and open chunks of two series of rank 0, of which one was stored a point at a time."""
    attempt = factory.start(factory.queued(alice, {"dp": 2}))
    factory.feed(attempt, 0, points_frame(0, 1100) + points_frame(0, 600, "grad_norm"))
    return attempt


def test_points_are_added_without_a_look_at_full_chunks_or_other_series(attempt: Attempt) -> None:
    with CaptureQueriesContext(connection) as asked:
        factory.feed(attempt, 0, points_frame(1100, 10))
    (plan,) = plans(asked, 'NOT "runs_serieschunk"."closed"')
    assert "open_series_chunks (attempt_id=? AND name=? AND rank=?)" in plan
    counts = list(SeriesChunk.objects.filter(name="loss").order_by("first_step").values_list("count", "closed"))
    assert counts == [(500, True), (500, True), (110, False)]


def test_the_last_step_with_shares_is_told_by_one_chunk(attempt: Attempt) -> None:
    assert step_shares._last_step(attempt) == -1
    factory.feed(attempt, 0, points_frame(0, 1100, "bubble_share"))
    with CaptureQueriesContext(connection) as asked:
        assert step_shares._last_step(attempt) == 1099
    assert "LIMIT 1" in asked.captured_queries[0]["sql"]
    (plan,) = plans(asked)
    assert "(attempt_id=? AND name=? AND rank=?)" in plan and "TEMP B-TREE" not in plan


def test_attempts_that_are_long_over_are_not_looked_at(attempt: Attempt) -> None:
    OpenWaits.objects.create(attempt=attempt, rank=0, steps=1, data=b"")
    for asks in (live_attempts, lambda: timeline([], 24), lambda: sweeps.sweep_unsettled(["yard-a"])):
        with CaptureQueriesContext(connection) as asked:
            asks()
        every = [plan for plan in plans(asked, "runs_attempt") if "runs_attempt" in plan]
        assert every
        for plan in every:
            assert "SCAN runs_attempt" not in plan.replace("SCAN runs_attempt USING INDEX attempts_under_way", "")


def test_beginnings_are_read_of_the_wanted_series_alone(attempt: Attempt) -> None:
    with CaptureQueriesContext(connection) as asked:
        assert metrics.beginnings(attempt.run, ["grad_norm"]) == {("grad_norm", 0): "1:0"}
    (plan,) = plans(asked)
    assert "(attempt_id=? AND name=? AND rank=?)" in plan


def test_of_traced_steps_the_whole_ones_alone_are_read(attempt: Attempt) -> None:
    """One row a step and rank would be read of a run of a hundred thousand traced steps."""
    with CaptureQueriesContext(connection) as asked:
        assert selectors.find_typical_step(attempt.run) is None
    assert "HAVING COUNT" in asked.captured_queries[0]["sql"] and len(asked) == 1
    (plan,) = plans(asked)
    assert "COVERING INDEX" in plan and "TEMP B-TREE" not in plan
