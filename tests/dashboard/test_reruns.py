"""Disturbed runs of a study, run again: which run stands for a setting, and how the page offers it."""

from __future__ import annotations

from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.test import Client
from django.utils import timezone

from dashboard.fleet import listening
from dashboard.fleet.models import ControllerState, Worker
from dashboard.runs import cancelling, removal, services, states, submission
from dashboard.runs.models import Checkpoint, Run, State
from dashboard.runs.standing import standing, stands_for
from dashboard.studies import reruns
from dashboard.studies.models import Study
from dashboard.studies.overview import answer_cache, method
from dashboard.studies.selectors import overview
from tests.dashboard import factory

pytestmark = pytest.mark.django_db
CALM, NOISY = 0.01, 0.5


@pytest.fixture
def study(alice: Any) -> Study:
    """A calm baseline, and disturbed runs of DP and TP."""
    made = Study.objects.create(name="three", owner=alice, kind="matrix", base=factory.BASE)
    for position, (split, others) in enumerate((({}, CALM), ({"dp": 2}, NOISY), ({"tp": 2}, NOISY))):
        run = factory.finished(alice, split, study=made, position=position, exclusive=True, cpu_others=others)
        made.baseline = made.baseline or run
    made.save()
    return made


def ran(run: Run, others: float) -> Run:
    """Finishes a queued run with that share of disturbance."""
    attempt = factory.start(run)
    factory.feed_steps(attempt, run.spec["train"]["steps"])
    factory.end(run, State.SUCCEEDED)
    run.summary = {**run.summary, "cpu_others": others}
    run.save(update_fields=("summary",))
    return run


def labels(study: Study) -> dict[str, float]:
    return {run.label: run.summary["cpu_others"] for run in standing(study.runs.all())}


def test_the_disturbed_ones_are_queued_in_their_places(study: Study, alice: Any) -> None:
    queued = reruns.run_again(study=study, user=alice)
    assert [(run.label, run.position, run.exclusive, run.state) for run in queued] == [
        ("DP", 1, True, State.QUEUED),
        ("TP", 2, True, State.QUEUED),
    ]
    assert [run.spec for run in queued] == [study.runs.get(repeated_as=run).spec for run in queued]
    assert reruns.run_again(study=study, user=alice) == []  # they are under way


def test_a_baseline_that_was_run_again_is_kept_already(study: Study, alice: Any, client: Client) -> None:
    """Another run of its setting stands for it; only the run of another setting would be another baseline."""
    base = study.baseline
    assert base is not None
    Run.objects.filter(pk=base.pk).update(summary={**base.summary, "cpu_others": NOISY})
    client.force_login(alice)
    single, dp, _ = (ran(run, CALM) for run in reruns.run_again(study=study, user=alice))
    address = f"/studies/{study.pk}/"
    page = client.get(address)
    assert page.context["view"].baseline.run == single and "Keep as baseline" not in page.content.decode()
    assert "Keep as baseline" in client.get(f"{address}?baseline={dp.pk}").content.decode()


@pytest.mark.parametrize(("second", "stands"), [(CALM, CALM), (0.3, 0.3), (0.9, NOISY)])
def test_the_least_disturbed_run_stands_for_its_setting(study: Study, alice: Any, second: float, stands: float) -> None:
    dp, tp = reruns.run_again(study=study, user=alice)
    assert len(standing(study.runs.all())) == 5  # unfinished runs are shown, too
    ran(dp, second)
    cancelling.request_cancel(run=tp, user=alice)
    assert labels(study) == {"Single": CALM, "DP": stands, "TP": NOISY}


def test_a_run_that_is_disturbed_again_can_be_run_a_third_time(study: Study, alice: Any) -> None:
    first = {run.label: run.pk for run in study.runs.all()}
    for run in reruns.run_again(study=study, user=alice):
        ran(run, 0.3)
    third = reruns.run_again(study=study, user=alice)
    assert {run.label: run.repeats_id for run in third} == {name: first[name] for name in ("DP", "TP")}
    for run in third:
        ran(run, CALM)
    assert set(labels(study).values()) == {CALM}
    assert reruns.run_again(study=study, user=alice) == []


def test_a_baseline_that_was_run_again_stays_the_baseline(study: Study, alice: Any) -> None:
    study.baseline = study.runs.get(label="DP")
    study.save()
    client = Client()
    client.force_login(alice)
    queued = reruns.run_again(study=study, user=alice)
    assert [event.text for event in study.history] == [f"alice ran {len(queued)} runs again."]
    view = client.get(f"/studies/{study.pk}/").context["view"]
    assert view.baseline.run == study.baseline, "while the baseline is run again, its first run provides the result"
    assert "has no result yet" not in " ".join(view.verdict)
    for run in queued:
        ran(run, CALM)
    view = client.get(f"/studies/{study.pk}/").context["view"]
    assert view.baseline.entry.label == "DP" and view.baseline.run.summary["cpu_others"] == CALM
    assert len(view.rows) == 3


def test_the_page_offers_it_while_there_is_something_to_repeat(study: Study, alice: Any, bob: Any) -> None:
    client, viewer = Client(), Client()
    client.force_login(alice)
    viewer.force_login(bob)
    assert "Run the 2 disturbed again" in client.get(f"/studies/{study.pk}/").content.decode()
    assert "disturbed again" not in viewer.get(f"/studies/{study.pk}/").content.decode()
    assert viewer.post(f"/studies/{study.pk}/again/").status_code == 403
    assert client.post(f"/studies/{study.pk}/again/").status_code == 302
    assert "disturbed again" not in client.get(f"/studies/{study.pk}/").content.decode()
    for run in study.runs.filter(state=State.QUEUED):
        ran(run, CALM)
    page = client.get(f"/studies/{study.pk}/").content.decode()
    assert "disturbed again" not in page
    assert (
        "2 of them stand for an earlier run that was more disturbed"
        in client.get(f"/studies/{study.pk}/report/").content.decode()
    )
    said = client.post(f"/studies/{study.pk}/again/", follow=True).content.decode()
    assert "Nothing was queued" in said


def test_what_was_cut_off_from_outside_is_run_again_and_stands_aside(study: Study, alice: Any) -> None:
    """A run that failed by its own fault is not repeated, because it would fail again."""
    tp, single = study.runs.get(label="TP"), study.runs.get(label="Single")
    Run.objects.filter(pk=tp.pk).update(state=State.LOST, cause="worker_lost", summary={})
    Run.objects.filter(pk=single.pk).update(state=State.FAILED, cause="user_code", summary={})
    client = Client()
    client.force_login(alice)
    said = "Run the disturbed one and the one cut off again"
    assert said in client.get(f"/studies/{study.pk}/").content.decode()
    queued = reruns.run_again(study=study, user=alice)
    assert [run.label for run in queued] == ["DP", "TP"]
    for run in queued:
        ran(run, CALM)
    assert sorted(labels_of_ended_well(study)) == ["DP", "TP"]
    assert reruns.offer(study.runs.all()) == ""


def test_a_study_that_was_cancelled_half_way_goes_on(study: Study, alice: Any) -> None:
    """Only the cancelled run is repeated, and meanwhile the cancelled one is not shown next to it."""
    Run.objects.filter(study=study, label="TP").update(state=State.CANCELLED, cause="cancelled", summary={})
    client = Client()
    client.force_login(alice)
    page = client.get(f"/studies/{study.pk}/").content.decode()
    assert "1 cancelled</span>" in client.get("/studies/").content.decode()
    assert "Run the cancelled one</button>" in page and "Run the disturbed one again</button>" in page
    assert client.post(f"/studies/{study.pk}/again/", {"which": "cancelled"}).status_code == 302
    (queued,) = Run.objects.filter(study=study, state=State.QUEUED)
    assert (queued.label, queued.position) == ("TP", 2)
    view = client.get(f"/studies/{study.pk}/").context["view"]
    assert [row.run.pk for row in view.rows if row.run.label == "TP"] == [queued.pk] and len(view.rows) == 3
    listed = client.get("/studies/").content.decode()
    assert "cancelled</span>" not in listed and "2 of 3 runs done" in listed
    said = client.post(f"/studies/{study.pk}/again/", {"which": "cancelled"}, follow=True).content.decode()
    assert "no run was cancelled, or all are under way again" in said
    ran(queued, CALM)
    assert labels(study)["TP"] == CALM and reruns.unfinished(study.runs.all()) == ""
    assert "3 runs</span>" in client.get("/studies/").content.decode()


def _from_a_checkpoint(study: Study, alice: Any) -> tuple[Run, Checkpoint]:
    """A run of the study that began from another run's checkpoint and was lost, as was its only retry."""
    source = factory.finished(alice)
    kept = Checkpoint.objects.create(
        run=source, attempt=source.attempts.get(), worker="yard-a", step=20, bytes=1, seconds=0.1
    )
    run = factory.queued(alice, study=study, position=3, resume_from={"run": source.pk, "step": 20}, retries=1)
    for _ in range(2):
        states.lose(factory.start(run), "its worker was silent")
        run.refresh_from_db()
    assert (run.state, run.retries_left) == (State.LOST, 0)
    return run, kept


def test_what_is_run_again_begins_from_the_same_checkpoint_with_as_many_retries(study: Study, alice: Any) -> None:
    run, _ = _from_a_checkpoint(study, alice)
    (queued,) = (own for own in reruns.run_again(study=study, user=alice) if own.repeats_id == run.pk)
    assert (queued.resume_run_id, queued.resume_step, queued.retries_left) == (run.resume_run_id, 20, 1)


def test_what_is_refused_today_is_said_and_left_out(study: Study, alice: Any, client: Client) -> None:
    run, kept = _from_a_checkpoint(study, alice)
    others = {own.pk for own in reruns.repeatable(study.runs.all())} - {run.pk}
    kept.delete()
    client.force_login(alice)
    said = client.post(f"/studies/{study.pk}/again/", follow=True).content.decode()
    assert f"Left out. “{run.label}”: Run" in said and "has no checkpoint at step 20; it has none." in said
    assert {own.repeats_id for own in study.runs.filter(state=State.QUEUED)} == others
    study.runs.filter(state=State.QUEUED).update(state=State.CANCELLED)
    study.runs.filter(pk__in=others).delete()
    assert "Nothing was queued. “" in client.post(f"/studies/{study.pk}/again/", follow=True).content.decode()


def test_what_no_worker_takes_now_is_queued_and_said(study: Study, member: Client) -> None:
    Worker.objects.update(draining=True)
    waits = "Too few such devices take runs now: yard-a is draining."
    said = member.post(f"/studies/{study.pk}/again/", follow=True).content.decode()
    assert f"Queued, but they wait. No worker takes them now. “DP” and “TP”: {waits}</p>" in said
    assert study.runs.filter(state=State.QUEUED).count() == 2
    study.runs.filter(state=State.QUEUED).update(state=State.CANCELLED)
    Worker.objects.update(draining=False)
    said = member.post(f"/studies/{study.pk}/again/", follow=True).content.decode()
    assert "no worker takes" not in said and study.runs.filter(state=State.QUEUED).count() == 2


def test_while_the_controller_is_away_that_is_said_once(study: Study, member: Client) -> None:
    listening.stamp([])
    since = timezone.now() - timedelta(minutes=40)
    ControllerState.objects.update(listened_at=since)
    Worker.objects.update(heartbeat_at=since)
    said = member.post(f"/studies/{study.pk}/again/", follow=True).content.decode()
    assert "Queued, but they wait. The controller has not been heard for 40 min: nothing is placed" in said
    assert "No worker takes them" not in said
    again = member.post(f"/studies/{study.pk}/again/", follow=True).content.decode()
    assert "Nothing was queued: no run was" in again and "but they wait" not in again


def test_of_many_runs_with_one_reason_the_first_are_named() -> None:
    found = {f"r{i}": "Why." if i else "Another." for i in range(11)}
    some = ", ".join(f"“r{i}”" for i in range(1, 9))
    assert reruns.by_reason(found) == f"“r0”: Another. {some} and 2 more: Why."


def test_a_run_of_which_no_disturbance_is_known_for_all_its_steps_is_offered_to_be_repeated(study: Study) -> None:
    """It settles no prediction either."""
    single = study.runs.get(position=0)
    assert single not in reruns.disturbed(study.runs.all())
    single.summary |= {"cpu_others": None, "others_missing": True}
    single.save()
    assert single in reruns.disturbed(study.runs.all())
    assert reruns.offer(study.runs.all()) == "Run the 3 disturbed again"


def _of_one_device() -> None:
    """Makes the only worker one that has a single device."""
    host = Worker.objects.get()
    host.devices = host.devices[:1]
    host.save()


def test_what_new_run_would_refuse_is_left_out(study: Study, member: Client) -> None:
    """No worker that reports could ever take it."""
    _of_one_device()
    said = unescape(member.post(f"/studies/{study.pk}/again/", follow=True).content.decode())
    assert "Nothing was queued. “DP”: 2 replicas need 2 CPU devices; the fleet has 1." in said
    assert "“TP”: 2 tensor ranks need 2 CPU devices; the fleet has 1." in said
    refused = submission.assess(study.runs.get(label="DP").spec).errors.values()
    assert all(why in said for why in refused), "in the words of New run"
    assert not study.runs.filter(state=State.QUEUED).exists()


def test_a_text_that_no_worker_has_any_more_is_said(study: Study, alice: Any) -> None:
    dp = study.runs.get(label="DP")
    dp.spec["train"]["corpus"] = "tokens:gone.bin"
    dp.save()
    refused: dict[int, str] = {}
    queued = reruns.run_again(study=study, user=alice, refused=refused)
    assert [run.label for run in queued] == ["TP"] and refused[dp.pk].startswith("No worker that reports has the token")


def test_the_api_runs_again_and_says_who_waits(study: Study, member: Client, reader: Client) -> None:
    address, kind = f"/api/v1/studies/{study.pk}/again", "application/json"
    assert reader.post(address, {}, content_type=kind).status_code == 403
    Run.objects.filter(study=study, label="TP").update(state=State.CANCELLED, cause="cancelled", summary={})
    Worker.objects.update(draining=True)
    waits = "Too few such devices take runs now: yard-a is draining."
    made = member.post(address, {"which": "cancelled"}, content_type=kind)
    found = made.json()["data"]
    assert made.status_code == 200 and [run["strategy"] for run in found["queued"]] == ["TP"]
    assert (found["refused"], found["waits"]) == ({}, {"TP": waits})
    _of_one_device()
    found = member.post(address, {}, content_type=kind).json()["data"]
    assert found["queued"] == [] and list(found["refused"]) == ["DP"]
    assert member.post(address, {"which": "all"}, content_type=kind).status_code in (400, 422)


def test_of_two_runs_with_one_name_only_the_refused_one_is_left_out(study: Study, alice: Any, member: Client) -> None:
    """The second DP reads a text that no worker has any more."""
    study.runs.filter(label="TP").delete()
    good = study.runs.get(label="DP")
    gone = factory.finished(alice, {"dp": 2}, study=study, position=0, name=good.name, cpu_others=NOISY)
    gone.spec["train"]["corpus"] = "tokens:gone.bin"
    gone.save()
    address, kind = f"/api/v1/studies/{study.pk}/again", "application/json"
    Worker.objects.update(draining=True)
    found = member.post(address, {}, content_type=kind).json()["data"]
    assert [run["name"] for run in found["queued"]] == [good.name] and list(found["refused"]) == [good.name]
    assert study.runs.filter(repeats=good).count() == 1
    study.runs.filter(repeats=good).update(state=State.CANCELLED)
    Run.objects.filter(pk=gone.pk).update(spec=good.spec)
    found = member.post(address, {}, content_type=kind).json()["data"]
    assert (
        found["waits"].keys() == {f"{good.name} #{run['id']}" for run in found["queued"]} and len(found["waits"]) == 2
    )


def test_only_a_number_tells_runs_with_one_name_apart(study: Study, alice: Any) -> None:
    """Clients find a run by its name: neither its kind of model nor its precision is added to it."""
    dp, tp = study.runs.get(label="DP"), study.runs.get(label="TP")
    assert reruns.by_name({dp.pk: "a", tp.pk: "b"}) == {"DP": "a", "TP": "b"}
    dp.spec["train"]["precision"], tp.spec["model"] = "bf16", {"kind": "mlp", "layers": 2, "hidden": 32}
    dp.save()
    tp.save()
    assert reruns.by_name({dp.pk: "a", tp.pk: "b"}) == {"DP": "a", "TP": "b"}
    Run.objects.filter(pk=tp.pk).update(name="DP")
    assert reruns.by_name({dp.pk: "a", tp.pk: "b"}) == {f"DP #{dp.pk}": "a", f"DP #{tp.pk}": "b"}


def test_a_run_whose_beginning_was_deleted_does_not_begin_at_step_0(study: Study, alice: Any) -> None:
    run, _ = _from_a_checkpoint(study, alice)
    run.attempts.update(begins={"step": 20, "run": run.resume_run_id, "attempt": 1})
    removal.delete(runs=[run.resume_run_id or 0], user=alice)
    refused: dict[int, str] = {}
    queued = reruns.run_again(study=study, user=alice, refused=refused)
    assert refused == {run.pk: "the run from whose checkpoint it began was deleted."}
    assert queued and run.pk not in {own.repeats_id for own in queued}


def test_nor_does_one_that_was_cancelled_before_it_began(study: Study, alice: Any) -> None:
    run, _ = _from_a_checkpoint(study, alice)
    run.attempts.all().delete()
    Run.objects.filter(pk=run.pk).update(state=State.CANCELLED)
    removal.delete(runs=[run.resume_run_id or 0], user=alice)
    refused: dict[int, str] = {}
    assert reruns.run_again(study=study, user=alice, which=reruns.cancelled, refused=refused) == []
    assert list(refused.values()) == ["the run from whose checkpoint it began was deleted."]


def test_a_first_run_that_is_deleted_meanwhile_is_not_referred_to(
    study: Study, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = reruns.repeatable(study.runs.all())[0]
    for queued in reruns.run_again(study=study, user=alice):
        ran(queued, 0.3)
    prepare = services.prepare

    def slow(**orders: Any) -> Any:
        made = prepare(**orders)
        if Run.objects.filter(pk=first.pk).exists():
            removal.delete(runs=[first.pk], user=alice)
        return made

    monkeypatch.setattr(services, "prepare", slow)
    again = reruns.run_again(study=study, user=alice)
    assert again and all(run.repeats_id and Run.objects.filter(pk=run.repeats_id).exists() for run in again)


def labels_of_ended_well(study: Study) -> list[str]:
    return [run.label for run in standing(study.runs.all()) if run.state == State.SUCCEEDED]


def test_the_list_goes_by_what_stands(study: Study, alice: Any) -> None:
    assert "disturbed" in answer_cache.verdicts([study])[study.pk]
    for run in reruns.run_again(study=study, user=alice):
        ran(run, CALM)
    assert "disturbed" not in answer_cache.verdicts([study])[study.pk]


def test_others_may_not(study: Study, bob: Any) -> None:
    with pytest.raises(PermissionDenied):
        reruns.run_again(study=study, user=bob)
    assert study.runs.count() == 3


def told(study: Study) -> str:
    """What the report's method says about repeats."""
    runs = standing(study.runs.all())
    view = overview(runs, stands_for(study.baseline, runs))
    return next(line.text for line in method.of_overview(view, []) if line.term == "Repeats")


def test_the_method_says_why_an_earlier_run_was_replaced(study: Study, alice: Any) -> None:
    Run.objects.filter(study=study, label="TP").update(state=State.CANCELLED, cause="cancelled", summary={})
    assert told(study) == (
        "Each setting with a result (2 of 3) ran once; 2 of 2 runs had their host free of this yard's other runs."
    )
    queued = reruns.run_again(study=study, user=alice, which=lambda every: [r for r in every if r.label != "Single"])
    assert told(study).startswith("Each setting with a result (2 of 3)") and "stand" not in told(study), (
        "queued, they replace none yet"
    )
    for run in queued:
        ran(run, CALM)
    assert told(study) == (
        "Each setting ran once; 3 of 3 runs had their host free of this yard's other runs. "
        "1 of them stands for an earlier run that was more disturbed. "
        "1 of them stands for an earlier run that ended without a result."
    )


def test_runs_without_a_result_did_not_run_once(study: Study) -> None:
    study.runs.update(state=State.FAILED, summary={})
    assert told(study) == "No run has a result yet."
