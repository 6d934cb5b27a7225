"""What a replay predicts for another schedule is settled by a later run that uses that schedule."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client

from dashboard.fleet.models import Worker
from dashboard.ledger import records
from dashboard.ledger.models import Prediction
from dashboard.ledger.services import settle
from dashboard.runs.models import RankInfo, Run, State
from dashboard.runs.tracing import traces
from parallel_core.simulate.replay import Change, replay
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.run_analyst import foresee_all

pytestmark = pytest.mark.django_db
GPIPE = {"pp": 2, "schedule": "gpipe", "micro_batches": 4}


def _looked_at(run: Run) -> Prediction:
    """The run's prediction, once the analyst has looked for a replay."""
    foresee_all()
    return Prediction.objects.get(run=run)


def _of_median(run: Run, trace: traces.Trace, change: Change) -> float:
    """What the change makes of the run's median step, in seconds."""
    factor = replay(trace.spec, trace.measured, change).step / trace.measured.step
    return float(run.summary["timed"]["median"] * factor)


def test_another_schedule_is_foreseen_and_settled(reader: Client, alice: Any) -> None:
    before = factory.finished(alice, GPIPE)
    run = factory.queued(alice, {**GPIPE, "schedule": "1f1b"})
    said = _looked_at(run)
    trace = traces.trace(before, None)
    assert trace is not None and said.replayed == before and said.replayed_seconds
    assert said.replayed_seconds == pytest.approx(_of_median(before, trace, Change(schedule="1f1b")))
    assert records.replay_record().sentence() == "No predictions settled yet."
    Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED)
    run.refresh_from_db()
    settle(run, {"timed": {"median": said.replayed_seconds / 1.04}, "memory": None, "cpu_others": 0.0})
    assert records.replay_record().sentence().startswith("1 prediction, mean error 4.0 %, bias +4.0 %")
    text = reader.get("/partition/record/").content.decode()
    assert "By what-if from another run: 1 prediction" in text and f"/runs/{before.pk}/?tab=whatif" in text


def test_other_micro_batches_are_foreseen_too(alice: Any) -> None:
    before = factory.finished(alice, GPIPE)
    said = _looked_at(factory.queued(alice, {**GPIPE, "micro_batches": 8}))
    assert said.replayed == before and said.replayed_seconds


def test_ranks_that_took_turns_on_a_device_foresee_nothing(alice: Any) -> None:
    before = factory.finished(alice, GPIPE)
    for info in RankInfo.objects.filter(attempt__run=before):
        info.hello["number"] = 0
        info.save()
    assert _looked_at(factory.queued(alice, {**GPIPE, "schedule": "1f1b"})).replayed is None


def test_early_gradients_are_foreseen_but_not_what_is_without_them(alice: Any) -> None:
    before = factory.finished(alice, GPIPE)
    said = _looked_at(factory.queued(alice, {**GPIPE, "early_gradients": True}))
    trace = traces.trace(before, None)
    assert trace is not None and said.replayed == before
    assert said.replayed_seconds == pytest.approx(_of_median(before, trace, Change(early_gradients=True)))
    assert said.replayed_seconds and said.replayed_seconds < before.summary["timed"]["median"]
    Run.objects.filter(pk=before.pk).delete()
    factory.finished(alice, {**GPIPE, "early_gradients": True})
    assert _looked_at(factory.queued(alice, GPIPE)).replayed is None


def test_nobody_waits_for_a_replay_and_none_comes_too_late(alice: Any) -> None:
    before = factory.finished(alice, GPIPE)
    runs = [factory.queued(alice, {**GPIPE, "schedule": name}) for name in ("1f1b", "zb-h1")]
    said = Prediction.objects.filter(run__in=runs)
    assert not said.filter(replayed__isnull=False) and said.filter(to_replay=True).count() == 2
    assert not Prediction.objects.get(run=factory.queued(alice, {"dp": 2})).to_replay
    Run.objects.filter(pk=runs[0].pk).update(state=State.SUCCEEDED)
    runs[0].refresh_from_db()
    settle(runs[0], {"timed": {"median": 0.1}, "memory": None, "cpu_others": 0.0})
    assert _looked_at(runs[0]).replayed is None, "it was measured before the replay predicted anything"
    assert _looked_at(runs[1]).replayed == before and not said.filter(to_replay=True)


@pytest.mark.parametrize(
    ("split", "train"),
    [
        (GPIPE, {}),  # the same run again
        ({**GPIPE, "recompute": "full"}, {}),
        ({**GPIPE, "schedule": "1f1b"}, {"global_batch": 32}),
        ({"dp": 2}, {}),
        ({**GPIPE, "schedule": "1f1b-stash"}, {"clip_norm": None}),
    ],
)
def test_what_differs_in_more_is_not(alice: Any, split: dict[str, Any], train: dict[str, Any]) -> None:
    factory.finished(alice, GPIPE)
    said = _looked_at(factory.queued(alice, split, train=train))
    assert said.replayed is None and said.replayed_seconds is None


def test_a_disturbed_or_failed_run_foresees_nothing(alice: Any) -> None:
    before = factory.finished(alice, GPIPE)
    Prediction.objects.filter(run=before).update(disturbed=True)
    assert _looked_at(factory.queued(alice, {**GPIPE, "schedule": "1f1b"})).replayed is None
    Prediction.objects.filter(run=before).update(disturbed=False)
    Run.objects.filter(pk=before.pk).update(state=State.FAILED)
    assert _looked_at(factory.queued(alice, {**GPIPE, "schedule": "zb-h1"})).replayed is None


def test_the_what_if_tab_leads_to_the_run_that_settles_it(member: Client, reader: Client, alice: Any) -> None:
    before = factory.finished(alice, GPIPE)
    page = member.get(f"/runs/{before.pk}/", {"tab": "whatif", "schedule": "1f1b"})
    address = page.context["run_address"]
    spec = RunSpec.model_validate_json(parse_qs(urlsplit(address).query)["spec"][0])
    assert (spec.parallel.schedule, spec.parallel.micro_batches) == ("1f1b", 4)
    assert spec.model == RunSpec.model_validate(before.spec).model
    said = _looked_at(factory.services.submit(owner=alice, spec=spec.model_dump(mode="json")))
    assert said.replayed == before
    assert "settles this prediction" in page.content.decode()
    seen = reader.get(f"/runs/{before.pk}/", {"tab": "whatif", "schedule": "1f1b"}).content.decode()
    assert "settles this prediction" not in seen  # hidden from users who may not submit
    Prediction.objects.filter(run=before).update(disturbed=True)
    page = member.get(f"/runs/{before.pk}/", {"tab": "whatif", "schedule": "1f1b"})
    assert "not kept on Record" in page.content.decode()
    for hypothetical in ({"device": "2"}, {"schedule": "1f1b", "links": "4"}, {}):
        page = member.get(f"/runs/{before.pk}/", {"tab": "whatif", **hypothetical})
        assert not page.context.get("run_address")


def test_a_step_of_another_host_is_not_settled(alice: Any) -> None:
    """A replay of a run on yard-a predicts steps of yard-a alone."""
    before = factory.finished(alice, GPIPE)
    run = factory.queued(alice, {**GPIPE, "schedule": "1f1b"})
    assert _looked_at(run).replayed == before
    factory.worker("yard-b")
    attempt = factory.start(run)
    attempt.devices = [{**attempt.devices[0], "worker": "yard-b"}]
    attempt.save()
    Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED)
    run.refresh_from_db()
    settle(run, {"timed": {"median": 0.1}, "memory": None, "cpu_others": 0.0})
    said = Prediction.objects.get(run=run)
    assert (said.replayed, said.replayed_seconds, said.disturbed) == (None, None, False)
    assert records.replay_record().errors == ()


def test_only_a_run_on_the_host_that_would_run_it_is_replayed(alice: Any) -> None:
    before = factory.finished(alice, GPIPE)
    factory.worker("yard-b")
    Worker.objects.filter(name="yard-a").update(draining=True)
    assert _looked_at(factory.queued(alice, {**GPIPE, "schedule": "1f1b"})).replayed is None
    Worker.objects.filter(name="yard-a").update(draining=False)
    assert _looked_at(factory.queued(alice, {**GPIPE, "schedule": "1f1b"})).replayed == before


def test_a_run_that_only_settles_nothing_is_replayed(alice: Any) -> None:
    """Its time is not held against the profile of another host, but nobody disturbed it."""
    before = factory.finished(alice, GPIPE)
    Prediction.objects.filter(run=before).update(disturbed=True, left_out="It ran on yard-b.")
    assert _looked_at(factory.queued(alice, {**GPIPE, "schedule": "1f1b"})).replayed == before
