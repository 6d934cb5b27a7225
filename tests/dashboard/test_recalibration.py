"""Runs that a user marks recalibrate a profile's table; the other runs are held out and show the effect."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.test import Client
from django.utils import timezone

from dashboard.accounts.roles import make_member
from dashboard.fleet.models import Worker
from dashboard.ledger import selectors
from dashboard.ledger.models import Prediction, Profile
from dashboard.ledger.recalibration import MAY_NOT
from dashboard.ledger.services import answer_profile, ask_profile, settle
from dashboard.runs import services
from dashboard.runs.models import Run, State
from parallel_core.spec import ModelSpec, RunSpec
from tests.parallel_core.tables import table

pytestmark = pytest.mark.django_db
MODEL = ModelSpec(layers=4, hidden=32, heads=2, seq=16)
SPLITS: tuple[dict[str, Any], ...] = ({}, {"dp": 2}, {"pp": 2, "micro_batches": 4})
SLOWER = 1.5


def _spec(split: dict[str, Any], **train: Any) -> RunSpec:
    return RunSpec.model_validate(
        {"model": MODEL.model_dump(), "parallel": split, "train": {"global_batch": 16, **train}}
    )


def _profiled(alice: Any, **train: Any) -> Profile:
    worker, _ = Worker.objects.get_or_create(name="yard-a", defaults={"devices": [], "heartbeat_at": timezone.now()})
    asked = ask_profile(worker=worker, spec=_spec({}, **train), user=alice)
    answer_profile("yard-a", {"profile": asked.pk, "table": table(MODEL, **train).dump()})
    return Profile.objects.get(pk=asked.pk)


def _ran(alice: Any, split: dict[str, Any], disturbed: bool = False, **train: Any) -> Prediction:
    """A finished run that took SLOWER times its predicted time."""
    run = services.submit(owner=alice, spec=_spec(split, **train).model_dump(mode="json"))
    said = Prediction.objects.get(run=run)
    assert said.seconds
    Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED)
    run.refresh_from_db()
    measured = {"timed": {"median": SLOWER * said.seconds}, "memory": None, "cpu_others": 0.5 if disturbed else 0.0}
    settle(run, measured)
    return Prediction.objects.get(run=run)


def _said(answer: Any) -> str:
    return " ".join(str(message) for message in get_messages(answer.wsgi_request))


def test_marked_runs_recalibrate_and_the_others_are_held_out(member: Client, alice: Any) -> None:
    profile = _profiled(alice)
    rows = [_ran(alice, split) for split in (*SPLITS, {})]
    page = member.get("/partition/record/").content.decode()
    assert page.count('name="fit"') == len(rows) and "Recalibrate" in page
    answer = member.post("/partition/recalibrate", {"fit": [rows[0].pk]})
    assert "from now on" in _said(answer)
    made = Profile.objects.get(base=profile)
    assert answer.status_code == 302 and made.recalibration["runs"] == [rows[0].run_id]
    assert made.recalibration["factor"] == pytest.approx(SLOWER, rel=0.01)
    assert "1 run fitted to: mean error 33.3 % before, 0.0 % now." in _said(answer)
    before, after, count = made.recalibration["held_out"]
    assert count == 3 and before == pytest.approx(1 - 1 / SLOWER) and after < 0.02
    said = selectors.predicted(_spec({}))
    assert said.profile == made and said.seconds == pytest.approx(rows[0].measured_seconds, rel=2e-3)
    text = member.get("/partition/record/").content.decode()
    assert "on yard-a, recalibrated 1.50x:" in text and "3 runs held out" in text


@pytest.mark.parametrize("marked", ["x", "9" * 30, "\x00", "-1"])
def test_a_mark_that_is_no_run_is_refused(member: Client, marked: str) -> None:
    assert "A marked run cannot be used" in _said(member.post("/partition/recalibrate", {"fit": marked}))


def test_a_table_that_is_recalibrated_again_is_told_against_the_profile(member: Client, alice: Any) -> None:
    """Both times the runs took 1.5 times what was predicted for them."""
    profile = _profiled(alice)
    member.post("/partition/recalibrate", {"fit": [_ran(alice, {}).pk]})
    first = Profile.objects.get(base=profile)
    said = _said(member.post("/partition/recalibrate", {"fit": [_ran(alice, {}).pk]}))
    assert "Computing takes 2.25x the profiled time." in said
    second = Profile.objects.get(base=first)
    assert str(second).endswith("on yard-a, recalibrated 2.25x")
    said = _said(member.post(f"/partition/recalibrated/{first.pk}/undo"))
    assert said.endswith("is undone: runs are not predicted with it any more.")
    assert selectors.predicted(_spec({})).profile == second, "not the one that counted before the first"
    assert "table before it counts" not in member.get("/partition/record/").content.decode()


def test_a_recalibration_is_undone(member: Client, reader: Client, alice: Any) -> None:
    profile = _profiled(alice)
    row = _ran(alice, {})
    member.post("/partition/recalibrate", {"fit": [row.pk]})
    made = Profile.objects.get(base=profile)
    told = _ran(alice, {"dp": 2})
    address = f"/partition/recalibrated/{made.pk}/undo"
    assert address in member.get("/partition/record/").content.decode()
    assert address not in reader.get("/partition/record/").content.decode()
    assert reader.post(address).status_code == 403 and selectors.predicted(_spec({})).profile == made
    assert [_said(member.post(address)).count("is undone") for _ in range(2)] == [1, 1], "the second click does nothing"
    assert selectors.predicted(_spec({})).profile == profile and selectors.predicted(_spec({})).seconds == row.seconds
    told.refresh_from_db()
    assert told.profile == made, "the earlier prediction stays on the record"
    text = member.get("/partition/record/").content.decode()
    assert "Undone by alice. Runs are not predicted with it any more." in text and address not in text
    assert text.count('name="fit"') == 1, "a run that an undone table predicted cannot be used for a fit"
    assert member.post(f"/partition/recalibrated/{profile.pk}/undo").status_code == 404


def test_a_member_changes_no_table_of_somebody_else(member: Client, alice: Any, bob: Any) -> None:
    profile, row, other = _profiled(alice), _ran(alice, {}), Client()
    other.force_login(make_member(bob))
    page = other.get("/partition/record/").content.decode()
    assert 'name="fit"' not in page and MAY_NOT in page
    assert other.post("/partition/recalibrate", {"fit": [row.pk]}).status_code == 403
    assert not Profile.objects.exclude(pk=profile.pk).exists()
    member.post("/partition/recalibrate", {"fit": [row.pk]})
    made = Profile.objects.get(base=profile)
    address = f"/partition/recalibrated/{made.pk}/undo"
    page = other.get("/partition/record/").content.decode()
    assert address not in page and "Recalibrated by alice." in page
    assert other.post(address).status_code == 403 and selectors.predicted(_spec({})).profile == made
    Profile.objects.update(asked_by=None)
    page = other.get("/partition/record/").content.decode()
    assert address in page and MAY_NOT not in page, "whose account is gone"
    assert "undone" in _said(other.post(address))
    assert "Undone by bob." in member.get("/partition/record/").content.decode()


@pytest.mark.parametrize("which", ["none", "disturbed", "unknown", "many", "two profiles"])
def test_what_cannot_be_fitted_is_said(member: Client, alice: Any, which: str) -> None:
    _profiled(alice)
    rows = [_ran(alice, {}) for _ in range(5)] if which == "many" else [_ran(alice, {}, which == "disturbed")]
    if which == "two profiles":
        Profile.objects.all().update(done_at=timezone.now() - timedelta(days=1))
        _profiled(alice)
        rows.append(_ran(alice, {}))
    fit = {"none": [], "unknown": [9999]}.get(which, [row.pk for row in rows])
    told = {
        "none": "Mark the runs",
        "disturbed": "A marked run cannot be used",
        "unknown": "A marked run cannot be used",
        "many": "At most 4 runs",
        "two profiles": "The marked runs were predicted from different profiles",
    }
    answer = member.post("/partition/recalibrate", {"fit": fit})
    assert answer.status_code == 302 and _said(answer).startswith(told[which]), "a sentence, without a field before it"
    kept = member.get(answer["Location"]).content.decode().count(" checked ")
    assert kept == {"many": 5, "two profiles": 2}.get(which, 0), "marked runs stay marked"
    assert not Profile.objects.filter(base__isnull=False).exists()


def test_runs_predicted_from_other_kernels_take_no_part(member: Client, alice: Any) -> None:
    """Rows from before deterministic kernels of GPUs had profiles of their own: the table cannot predict those runs."""
    profile, rows = _profiled(alice, device="cuda"), []
    for exact in (False, True, False):
        rows.append(_ran(alice, {}, device="cuda"))
        Run.objects.filter(pk=rows[-1].run_id).update(
            spec=_spec({}, device="cuda", deterministic=exact).model_dump(mode="json")
        )
    page = member.get("/partition/record/").content.decode()
    assert page.count('name="fit"') == 2
    assert "cannot be used" in _said(member.post("/partition/recalibrate", {"fit": [rows[1].pk]}))
    assert "1 run held out" in _said(member.post("/partition/recalibrate", {"fit": [rows[0].pk]}))
    assert Profile.objects.get(base=profile).recalibration["factor"] == pytest.approx(SLOWER, rel=0.01)


def test_runs_with_deterministic_kernels_recalibrate_their_own_profile(member: Client, alice: Any) -> None:
    exact: dict[str, Any] = {"device": "cuda", "deterministic": True}
    profile = _profiled(alice, **exact)
    row = _ran(alice, {}, **exact)
    assert "from now on" in _said(member.post("/partition/recalibrate", {"fit": [row.pk]}))
    assert Profile.objects.get(base=profile).table["deterministic"] is True


def test_a_viewer_may_look_but_not_recalibrate(reader: Client, alice: Any) -> None:
    _profiled(alice)
    row = _ran(alice, {})
    assert 'name="fit"' not in reader.get("/partition/record/").content.decode()
    assert reader.post("/partition/recalibrate", {"fit": [row.pk]}).status_code == 403


def test_the_record_says_why_nothing_can_be_marked(member: Client, alice: Any) -> None:
    _profiled(alice)
    _ran(alice, {"dp": 2}, disturbed=True)
    page = member.get("/partition/record/").content.decode()
    assert 'name="fit"' not in page and "can recalibrate its table; none is among these" in page
