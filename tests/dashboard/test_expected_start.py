"""A queued run says when it is expected to start, as far as that is known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from dashboard.control.placing import place_queued
from dashboard.ledger.models import Prediction
from dashboard.runs import states
from dashboard.runs.models import Run, State
from dashboard.runs.page.verdict import verdict
from dashboard.runs.waiting import expected_start
from dashboard.studies.models import Study
from parallel_core.observe.record_files import encode
from tests.dashboard import factory
from tests.dashboard.fake_worker import points_frame

pytestmark = pytest.mark.django_db
STEPS = 101
UNKNOWN = "Starts at 14:02 UTC at the earliest; how long the runs ahead take is not known."


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 3, 1, 14, 0, 10, tzinfo=UTC)
    monkeypatch.setattr(expected_start, "timezone", SimpleNamespace(now=lambda: now))


def holder(owner: Any, left_s: float | None) -> Run:
    """A run on one of the two devices of the only worker, which has `left_s` seconds left."""
    run = factory.queued(owner, train={"steps": STEPS})
    factory.start(run)
    Run.objects.filter(pk=run.pk).update(step=50, step_time=left_s / 50 if left_s else None)
    return run


def queued(owner: Any, seconds: float | None) -> Run:
    """A queued run on both devices, predicted to take `seconds`."""
    run = factory.queued(owner, {"dp": 2}, train={"steps": STEPS})
    Prediction.objects.filter(run=run).update(seconds=seconds / STEPS if seconds else None)
    return run


def test_it_starts_at_the_soonest_when_one_ends_and_at_the_latest_after_all(
    alice: Any, django_assert_max_num_queries: Any
) -> None:
    holder(alice, left_s=120)
    first = queued(alice, seconds=600)
    assert verdict(first).more == "Expected to start between 14:02 and 14:03 UTC."
    second = queued(alice, seconds=None)
    assert verdict(second).more == "Expected to start between 14:02 and 14:13 UTC."
    with django_assert_max_num_queries(1):
        assert expected_start.expected_start([], [first.pk, second.pk]) == ""
        assert expected_start.expected_start([first], [second.pk]) == ""


def test_a_run_of_a_timed_study_starts_after_the_runs_before_it(alice: Any) -> None:
    study = Study.objects.create(name="Timed", owner=alice)
    first, second, third = (factory.queued(alice, study=study, position=i, exclusive=True) for i in range(3))
    assert verdict(second).more == "" == verdict(third).more, "before the first runs, nothing is known"
    factory.start(first)
    Run.objects.filter(pk=first.pk).update(step=32, step_time=12.0)
    Prediction.objects.filter(run=second).update(seconds=60 / 43)
    assert verdict(second).more == "Expected to start between 14:02 and 14:03 UTC."
    assert verdict(third).more == "Expected to start between 14:02 and 14:04 UTC."
    assert verdict(third).holding == [(first, "2 min left")]


def test_an_exclusive_run_waits_for_the_worker_that_is_idle_soonest(alice: Any, redis_url: str) -> None:
    """Runs that are being stopped take no time; how long those take that have timed no step is not known."""
    long = holder(alice, left_s=7200)
    factory.worker("yard-b", devices=2)
    factory.worker("yard-c", devices=2)
    others = [factory.queued(alice, {"dp": 2}, train={"steps": STEPS}, run_on=f"worker:yard-{x}") for x in "bc"]
    attempts = list(place_queued({"yard-b", "yard-c"}, {"yard-b", "yard-c"}))
    assert len(attempts) == 2
    timed = factory.queued(alice, exclusive=True)
    assert verdict(timed).holding == [(long, "2 h left")]
    Run.objects.filter(pk=others[0].pk).update(step=50, step_time=2.0, state=State.RUNNING)
    assert (
        verdict(timed).sentence
        == "Waits for 1 CPU device: yard-b must be idle, as timed runs share a host with nothing."
    )
    assert verdict(timed).more == "Expected to start between 14:01 and 14:02 UTC."
    states.cancelling(others[1])
    assert [run for run, _ in verdict(timed).holding] == [others[1]]


def test_a_study_waits_for_the_worker_on_which_all_its_runs_have_room(alice: Any) -> None:
    factory.worker("yard-a", devices=4)
    factory.start(factory.queued(alice))
    factory.worker("yard-b", devices=2)
    study = Study.objects.create(name="Timed", owner=alice)
    first, widest = (factory.queued(alice, {"dp": dp}, study=study, position=dp) for dp in (1, 4))
    said = "Waits for 1 CPU device: yard-a must be idle, as timed runs share a host with nothing"
    assert verdict(first).sentence == f"{said}, and its study has a run for 4."
    states.cancel_queued(widest)
    assert verdict(first).sentence == "Starts now."


def test_it_names_the_day_unless_that_is_today(alice: Any) -> None:
    holder(alice, left_s=600)
    queued(alice, seconds=24 * 3600)
    assert verdict(queued(alice, None)).more == "Expected to start between 14:10 and 2 Mar 14:11 UTC."


def test_with_a_run_ahead_of_unknown_length_only_the_soonest_is_said(alice: Any) -> None:
    holder(alice, left_s=120)
    queued(alice, seconds=None)
    assert verdict(queued(alice, 60)).more == UNKNOWN


@pytest.mark.parametrize("left_s", [None, 1e9])
def test_nothing_is_said_of_what_is_not_known_or_far_away(alice: Any, left_s: float | None) -> None:
    holder(alice, left_s)
    assert verdict(queued(alice, 60)).more == ""


def test_a_run_ahead_that_resumes_takes_only_the_steps_that_are_left(alice: Any) -> None:
    holder(alice, left_s=120)
    first = queued(alice, seconds=1010)
    Run.objects.filter(pk=first.pk).update(resume_step=95)
    assert verdict(queued(alice, None)).more == "Expected to start between 14:02 and 14:04 UTC."
    Prediction.objects.filter(run=first).update(seconds=1e300)
    assert verdict(queued(alice, None)).more == UNKNOWN


def test_evaluations_of_held_out_samples_are_counted(alice: Any) -> None:
    """As the last one took; before the first, as forwards of so many samples."""
    run = factory.queued(alice, train={"steps": STEPS, "eval_every": 10, "eval_samples": 48, "global_batch": 16})
    attempt = factory.start(run)
    Run.objects.filter(pk=run.pk).update(step=50, step_time=2.0)
    run.refresh_from_db()
    assert expected_start.seconds_left(run) == pytest.approx(50 * 2.0 + 6 * 2.0)
    factory.feed(attempt, 0, points_frame(49, 1, "eval_time"))
    assert expected_start.seconds_left(run) == pytest.approx(50 * 2.0 + 6 * 49.5)


def test_the_time_for_which_checkpoints_stop_training_is_counted(alice: Any) -> None:
    """Each as the last one, which waited for the one before it to be written."""
    run = factory.queued(alice, train={"checkpoint_every": 20, "steps": 100})
    attempt = factory.start(run)
    Run.objects.filter(pk=run.pk).update(step=49, step_time=2.0)
    run.refresh_from_db()
    assert expected_start.seconds_left(run) == pytest.approx(50 * 2.0)
    frame = {"kind": "checkpoint", "rank": 0, "t": 1.0, "step": 40, "bytes": 1, "seconds": 9.0, "kept": [40]}
    factory.feed(attempt, 0, encode({**frame, "blocked": 7.0}))
    assert expected_start.seconds_left(run) == pytest.approx(50 * 2.0 + 3 * 7.0)


def test_a_time_limit_ends_a_run_before_its_last_step(alice: Any) -> None:
    run = factory.queued(alice, {}, train={"steps": 1000, "max_minutes": 10})
    factory.start(run)
    began = expected_start.timezone.now() - timedelta(minutes=8)
    Run.objects.filter(pk=run.pk).update(step=9, step_time=2.0, started_at=began)
    run.refresh_from_db()
    left = expected_start.seconds_left(run)
    assert left is not None and 0 < left <= 120
    Run.objects.filter(pk=run.pk).update(step=997)
    run.refresh_from_db()
    assert expected_start.seconds_left(run) == pytest.approx(2 * 2.0)
