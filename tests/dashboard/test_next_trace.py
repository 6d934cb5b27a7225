""" "Trace the next step": requested on a run's page, the step chosen and sent by the controller, passed to ranks by the
worker.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.control import sweeps
from dashboard.runs import states
from dashboard.runs.models import Run, SpanChunk, State
from dashboard.runs.tracing import next_trace
from tests.dashboard import factory

pytestmark = pytest.mark.django_db


@pytest.fixture
def running(alice: Any, redis_url: str) -> Run:
    run = factory.queued(alice, {"dp": 2}, train={"steps": 1000})
    attempt = factory.start(run)
    factory.feed_steps(attempt, 12)
    Run.objects.filter(pk=run.pk).update(step=100, step_time=0.5, state=State.RUNNING)
    run.refresh_from_db()
    return run


def test_the_step_lies_far_enough_ahead_for_every_rank(running: Run) -> None:
    assert next_trace.due(running) == 100 + next_trace.LEAST_AHEAD + 6
    running.step_time = 0.01
    assert next_trace.due(running) == 100 + next_trace.LEAST_AHEAD + 300
    for changes in ({"step": None}, {"step_time": None}, {"step": 999}):
        for name, value in changes.items():
            setattr(running, name, value)
        assert next_trace.due(running) is None


@pytest.mark.parametrize("how", ["spans", "profiler"])
def test_from_the_button_to_the_orders(client: Client, alice: Any, running: Run, how: str) -> None:
    client.force_login(alice)
    page = f"/runs/{running.pk}/"
    assert "Trace the next step" in client.get(page).content.decode()
    assert sweeps.sweep_traces() == []
    assert client.post(f"{page}trace-next", {"how": how} if how != "spans" else {}).status_code == 302
    assert "as soon as one can be" in client.get(f"{page}part/head").content.decode()
    attempt = running.attempts.get()
    told = {"kind": "trace", "attempt": attempt.pk, "step": 108, "how": how}
    assert sweeps.sweep_traces() == [(node["worker"], told) for node in attempt.devices]
    assert sweeps.sweep_traces() == [], "each request is sent once"
    head = client.get(f"{page}part/head").content.decode()
    assert "Step 108 will be traced" in head and "disabled" in head
    again = client.post(f"{page}trace-next", follow=True).content.decode()
    assert "already waited for" in again
    running.refresh_from_db()
    assert running.trace_step == 108


def test_what_became_of_the_request(client: Client, alice: Any, running: Run) -> None:
    next_trace.request(run=running, user=alice)
    sweeps.sweep_traces()
    Run.objects.update(step=108 + next_trace.LATE_STEPS)
    running.refresh_from_db()
    late = next_trace.status(running)
    assert "ask again" in late.sentence and not late.pending
    SpanChunk.objects.filter(attempt__run=running).update(step=108)
    done = next_trace.status(running)
    assert (done.sentence, done.address) == ("Step 108 was traced.", "?step=108")
    client.force_login(alice)
    assert 'href="?step=108"' in client.get(f"/runs/{running.pk}/").content.decode()


def test_it_is_asked_of_the_next_attempt_if_one_ends_before(alice: Any, running: Run) -> None:
    """The ranks of the next one know nothing of it, and may begin far before the step that was chosen."""
    next_trace.request(run=running, user=alice)
    assert len(sweeps.sweep_traces()) == 1
    run = states.finish(running.attempts.get(), "interrupted", "interrupted")
    attempt = factory.start(run)
    assert sweeps.sweep_traces() == [], "none of its steps is known yet"
    factory.feed_steps(attempt, 5)
    Run.objects.update(step=4, step_time=0.5)
    ((_, told),) = sweeps.sweep_traces()
    assert (told["attempt"], told["step"]) == (attempt.pk, 12)
    SpanChunk.objects.create(attempt=attempt, rank=0, step=12, count=1, total=1, data=b"")
    again = factory.start(states.finish(attempt, "interrupted", "interrupted"))
    factory.feed_steps(again, 5)
    run.refresh_from_db()
    assert sweeps.sweep_traces() == [] and next_trace.status(run) == next_trace.Status(), "it was traced"


def test_only_the_owner_and_only_of_a_running_run(client: Client, alice: Any, bob: Any, running: Run) -> None:
    client.force_login(bob)
    assert client.post(f"/runs/{running.pk}/trace-next").status_code == 403
    assert "Trace the next step" not in client.get(f"/runs/{running.pk}/").content.decode()
    ended = factory.finished(alice)
    with pytest.raises(next_trace.Refused, match="not running"):
        next_trace.request(run=ended, user=alice)
    client.force_login(alice)
    assert "Trace the next step" not in client.get(f"/runs/{ended.pk}/").content.decode()
