"""Which state changes are allowed, and that a refused one changes nothing."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from dashboard.ages import clock
from dashboard.fleet.models import Worker
from dashboard.runs import cancelling, services, states
from dashboard.runs.models import Attempt, Run, State
from dashboard.runs.waiting import resting
from dashboard.runs.waiting.queue import waiting
from tests.dashboard.fake_worker import spec

NODES = [{"worker": "yard-a", "devices": [0], "first_rank": 0, "address": "host-a"}]
pytestmark = pytest.mark.django_db


@pytest.fixture
def worker() -> Worker:
    return Worker.objects.create(name="yard-a", boot="b")


@pytest.fixture
def run(alice: Any) -> Run:
    return services.submit(owner=alice, spec=spec())


@pytest.fixture
def attempt(run: Run, worker: Worker) -> Attempt:
    return states.place(run, NODES, worker)


def state_of(run: Run) -> str:
    return Run.objects.values_list("state", flat=True).get(pk=run.pk)


def test_the_way_to_success(run: Run, attempt: Attempt) -> None:
    assert state_of(run) == State.STARTING
    states.running(attempt)
    assert state_of(run) == State.RUNNING
    states.finish(attempt, "succeeded")
    assert state_of(run) == State.SUCCEEDED
    assert list(run.events.values_list("kind", flat=True)) == ["queued", "starting", "running", "succeeded"]
    said = list(run.events.values_list("text", flat=True))
    assert said[1:3] == ["Attempt 1 was placed on yard-a, device 0.", "The only rank of attempt 1 is running."]


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "cancelled"])
def test_an_end_can_come_before_running(run: Run, attempt: Attempt, outcome: str) -> None:
    states.finish(attempt, outcome, "user_code", "why")
    run.refresh_from_db()
    assert (run.state, run.cause, run.detail) == (outcome, "user_code", "why")
    assert run.ended_at is not None


def test_interrupted_is_queued_again_and_uses_no_retry(run: Run, attempt: Attempt) -> None:
    Run.objects.filter(pk=run.pk).update(retries_left=1)
    states.running(attempt)
    states.finish(attempt, "interrupted", "interrupted")
    run.refresh_from_db()
    assert (run.state, run.retries_left) == (State.QUEUED, 1)
    assert "queued again" in run.detail
    assert run.events.filter(kind="requeued").count() == 1


def test_interrupted_while_being_cancelled_is_cancelled(run: Run, attempt: Attempt, alice: Any) -> None:
    cancelling.request_cancel(run=run, user=alice)
    states.finish(attempt, "interrupted", "interrupted")
    assert state_of(run) == State.CANCELLED


@pytest.mark.parametrize(
    ("cause", "retries", "state", "again"),
    [
        ("worker_lost", 0, State.LOST, ""),
        ("worker_lost", 2, State.QUEUED, "Queued again; 1 retry left."),
        ("worker_lost", 1, State.QUEUED, "Queued again; this is its last retry."),
        ("killed_by_signal", 0, State.FAILED, ""),
        ("killed_by_signal", 2, State.QUEUED, "Queued again, to start in 5 s at the earliest; 1 retry left."),
        ("out_of_memory", 2, State.FAILED, ""),
        ("user_code", 2, State.FAILED, ""),
    ],
)
def test_what_something_outside_ended_uses_a_retry_where_one_is_left(
    run: Run, attempt: Attempt, cause: str, retries: int, state: State, again: str
) -> None:
    Run.objects.filter(pk=run.pk).update(retries_left=retries)
    states.finish(attempt, "failed", cause, "It ended.")
    run.refresh_from_db()
    attempt.refresh_from_db()
    assert (run.state, run.cause) == (state, "" if again else cause)
    assert (run.retries_left, run.detail) == (retries - bool(again), f"It ended. {again}".strip())
    assert (attempt.over, attempt.outcome, attempt.cause) == (True, "failed", cause)
    assert states.retries_at_first(run) == retries


def test_a_killed_run_that_is_to_be_cancelled_is_not_tried_again(run: Run, attempt: Attempt, alice: Any) -> None:
    Run.objects.filter(pk=run.pk).update(retries_left=2)
    cancelling.request_cancel(run=run, user=alice)
    states.finish(attempt, "failed", "killed_by_signal", "Rank 0 was killed.")
    assert state_of(run) == State.FAILED


def test_a_run_that_is_killed_again_and_again_rests_longer_each_time(
    run: Run, attempt: Attempt, worker: Worker
) -> None:
    """A host that kills what takes too much memory would else use up all retries within a second."""
    Run.objects.filter(pk=run.pk).update(retries_left=9)
    for rest in (5, 10, 20):
        states.finish(attempt, "failed", "killed_by_signal", "Rank 0 was killed.")
        attempt.refresh_from_db()
        assert attempt.ended_at is not None
        over = attempt.ended_at + timedelta(seconds=rest)
        assert resting.rests(over - timedelta(seconds=1)) == {run.pk: resting.Rest(over, "killed_by_signal")}
        assert resting.awake([run.pk], over) == [run.pk]
        said = waiting(Run.objects.get(pk=run.pk)).sentence
        assert said == f"Starts at {clock(over, timezone.now())} UTC at the earliest, as a process of it was killed."
        attempt = states.place(Run.objects.get(pk=run.pk), NODES, worker)


def test_a_clock_that_is_set_back_lets_no_run_rest_for_longer(run: Run, attempt: Attempt) -> None:
    Run.objects.filter(pk=run.pk).update(retries_left=9)
    states.finish(attempt, "failed", "killed_by_signal", "Rank 0 was killed.")
    attempt.refresh_from_db()
    assert attempt.ended_at is not None
    assert resting.rests(attempt.ended_at) and not resting.rests(attempt.ended_at - timedelta(hours=1))


SEGFAULT = "Rank 0 was killed by signal 11 (SIGSEGV) at step 12 in forward 3 of stage 1."


@pytest.mark.parametrize(
    ("then", "tried_again"),
    [
        (SEGFAULT, False),
        (SEGFAULT.replace("Rank 0", "Rank 1").replace("forward", "backward"), False),
        (SEGFAULT.replace("step 12", "step 13"), True),
        (SEGFAULT.replace("11 (SIGSEGV)", "6 (SIGABRT)"), True),
        (SEGFAULT.replace("11 (SIGSEGV)", "9 (SIGKILL)"), True),
    ],
)
def test_a_run_that_crashes_twice_in_a_row_at_the_same_step_is_not_tried_again(
    run: Run, attempt: Attempt, worker: Worker, then: str, tried_again: bool
) -> None:
    """Once it is: a driver may have crashed."""
    Run.objects.filter(pk=run.pk).update(retries_left=9)
    states.finish(attempt, "failed", "killed_by_signal", SEGFAULT)
    assert state_of(run) == State.QUEUED
    attempt = states.place(Run.objects.get(pk=run.pk), NODES, worker)
    states.finish(attempt, "failed", "killed_by_signal", then)
    run.refresh_from_db()
    assert (run.state, run.retries_left) == ((State.QUEUED, 7) if tried_again else (State.FAILED, 8))
    said = "The attempt before ended in the same way at the same step, so it is not tried again."
    assert (f"{then} {said}" == run.detail) is not tried_again


@pytest.mark.parametrize(("number", "tried_again"), [(signal.SIGABRT, True), (signal.SIGSEGV, False)])
def test_an_abort_of_a_run_over_several_hosts_may_be_for_the_loss_of_another(
    run: Run, attempt: Attempt, worker: Worker, number: int, tried_again: bool
) -> None:
    """NCCL's watchdog ends ranks so whose peers are gone."""
    Run.objects.filter(pk=run.pk).update(retries_left=9)
    said = f"Rank 0 was killed by signal {number:d} at step 12 in forward 3 of stage 1."
    states.finish(attempt, "failed", "killed_by_signal", said)
    attempt = states.place(Run.objects.get(pk=run.pk), NODES, worker)
    attempt.devices = [*NODES, {**NODES[0], "worker": "yard-b"}]
    attempt.save()
    states.finish(attempt, "failed", "killed_by_signal", said)
    assert (state_of(run) == State.QUEUED) is tried_again


def test_a_run_that_is_killed_from_outside_is_tried_again_as_often_as_it_was_told(
    run: Run, attempt: Attempt, worker: Worker
) -> None:
    Run.objects.filter(pk=run.pk).update(retries_left=9)
    for left in (8, 7, 6):
        states.finish(attempt, "failed", "killed_by_signal", "Rank 0 was killed by signal 9 (SIGKILL) at step 12.")
        assert Run.objects.get(pk=run.pk).retries_left == left
        attempt = states.place(Run.objects.get(pk=run.pk), NODES, worker)


def test_a_run_that_is_queued_again_keeps_its_place(run: Run, attempt: Attempt, worker: Worker) -> None:
    queued_at = run.queued_at
    states.finish(attempt, "interrupted")
    run.refresh_from_db()
    assert run.queued_at == queued_at
    assert states.place(run, NODES, worker).number == 2


def test_an_ended_attempt_ends_once(run: Run, attempt: Attempt) -> None:
    states.finish(attempt, "failed", "user_code", "first")
    for again in (lambda: states.finish(attempt, "succeeded"), lambda: states.lose(attempt, "x")):
        with pytest.raises(states.IllegalTransition):
            again()
    run.refresh_from_db()
    assert (run.state, run.detail) == (State.FAILED, "first")


def test_a_fenced_attempt_does_not_move_the_next_one(run: Run, attempt: Attempt, worker: Worker) -> None:
    states.finish(attempt, "interrupted")
    run.refresh_from_db()
    states.place(run, NODES, worker)
    for late in (lambda: states.running(attempt), lambda: states.finish(attempt, "succeeded")):
        with pytest.raises(states.IllegalTransition):
            late()
    assert state_of(run) == State.STARTING


ALLOWED = {
    "place": {State.QUEUED},
    "running": {State.STARTING},
    "cancelling": {State.STARTING, State.RUNNING},
    "cancel_queued": {State.QUEUED},
    "finish": {State.STARTING, State.RUNNING, State.CANCELLING},
    "lose": {State.STARTING, State.RUNNING, State.CANCELLING},
}
REFUSED = [(name, state) for name, allowed in ALLOWED.items() for state in State if state not in allowed]


@pytest.mark.parametrize(("name", "state"), REFUSED)
def test_refused(run: Run, attempt: Attempt, worker: Worker, name: str, state: State) -> None:
    Run.objects.filter(pk=run.pk).update(state=state)
    calls = {
        "place": lambda: states.place(run, NODES, worker),
        "running": lambda: states.running(attempt),
        "cancelling": lambda: states.cancelling(run),
        "cancel_queued": lambda: states.cancel_queued(run),
        "finish": lambda: states.finish(attempt, "succeeded"),
        "lose": lambda: states.lose(attempt, "x"),
    }
    events = run.events.count()
    with pytest.raises(states.IllegalTransition):
        calls[name]()
    assert state_of(run) == state
    assert run.events.count() == events
    assert list(Attempt.objects.values_list("over", flat=True)) == [False]
