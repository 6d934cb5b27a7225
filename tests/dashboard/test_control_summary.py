"""No ended run stays without a summary, with an outdated one or with an unsettled prediction, whoever is killed."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError

from dashboard.control import summary
from dashboard.control.controller import Controller
from dashboard.control.summary import store_summary, unsummarised
from dashboard.runs.models import Run
from tests.dashboard import factory
from tests.dashboard.fake_worker import Peer, points_frame
from tests.dashboard.ingested import on_both_devices

pytestmark = pytest.mark.django_db


class Killed(BaseException):
    """As SIGKILL, between two statements."""


def test_a_summary_is_not_stored_without_the_prediction_that_it_settles(
    redis_url: str, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = factory.finished(alice, {"dp": 2})
    Run.objects.filter(pk=run.pk).update(summary={})

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(summary.ledger, "settle", killed)
        with pytest.raises(Killed):
            store_summary(run.pk)
    assert unsummarised() == {run.pk}
    store_summary(run.pk)
    assert unsummarised() == set() and Run.objects.get(pk=run.pk).summary == run.summary


def test_a_prediction_that_cannot_be_settled_costs_no_summary(
    redis_url: str, alice: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """But a database that is away is asked for both again."""
    run = factory.finished(alice, {"dp": 2})
    cleared: dict[str, Any] = {"summary": {}, "step_time": None, "tokens_per_s": None}

    def failing(error: Exception) -> None:
        def settle(*_: Any) -> None:
            Run.objects.filter(pk=run.pk).update(name="half settled")
            raise error

        Run.objects.filter(pk=run.pk).update(**cleared)
        monkeypatch.setattr(summary.ledger, "settle", settle)

    failing(OperationalError("the connection was lost"))
    with pytest.raises(OperationalError):
        store_summary(run.pk)
    assert unsummarised() == {run.pk}
    failing(KeyError("timed"))
    store_summary(run.pk)
    now = Run.objects.get(pk=run.pk)
    assert all(getattr(now, name) == getattr(run, name) for name in (*cleared, "name"))
    assert now.step_time and now.tokens_per_s and "could not settle the prediction" in caplog.text


def test_a_controller_killed_after_late_data_leaves_the_summary_to_the_next(
    peer: Peer, controller: Controller, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the one before is shown."""
    attempt = on_both_devices(alice)
    late = peer.write(attempt.pk, points_frame(0, 9, "step_time"))
    peer.ended(attempt.pk)
    controller.turn()
    controller.turn()
    assert Run.objects.get().summary["timed"] is None and unsummarised() == set()
    peer.publish(attempt.pk, *late)
    monkeypatch.setattr(controller, "_summarise_one", lambda: None)
    controller.turn()
    shown = Run.objects.get().summary
    assert "timed" in shown and unsummarised() == {attempt.run_id}
    again = Controller()
    for _ in range(2):
        again.turn()
    assert Run.objects.get().summary["timed"]["median"] == 6.0, "of the steps after three to warm up"
    assert unsummarised() == set()
