"""Freeing the space of a run and keeping its numbers: what goes, that nothing shown changes, and who may."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from dashboard.api.models import Scope
from dashboard.control import thinning as control
from dashboard.control import tidying
from dashboard.control.controller import Controller
from dashboard.runs import removal, selectors
from dashboard.runs.models import Attempt, Event, MemoryRecord, ProfilePart, Run, SpanChunk, State, Thinned
from dashboard.runs.page import metric_rows
from dashboard.runs.services import Invalid
from dashboard.runs.tracing import thinning
from dashboard.settings import whole
from dashboard.studies.models import Study
from parallel_core.analysis.diagnosis.run_case import STEPS
from parallel_core.observe.record_files import encode
from parallel_core.spec import RunSpec
from tests.dashboard import factory
from tests.dashboard.fake_worker import Peer, points_frame, spans_frame, waits_frame
from tests.dashboard.test_api import bearer
from tests.dashboard.test_control import until

pytestmark = pytest.mark.django_db
TRACED = range(1, 30)
TABS = ("timeline", "accounts", "operators", "whatif", "metrics", "memory", "spec")

CHANGING = re.compile(
    r"""(?s)<div class="row" id="steps">.*?</form>\s*</div>|csrf\w*\W+(value=")?\w+"|="[0-9.]{12,}"|\d+ (s|min|h) ago"""
)


def traced(owner: Any, steps: range = TRACED, **about: Any) -> Run:
    """A run of two ranks that ended an hour ago, with spans of these steps and two metered ones."""
    run = factory.finished(owner, {"pp": 2, "micro_batches": 2}, **about)
    attempt = Attempt.objects.get(run=run)
    for rank, spans in factory.simulate(RunSpec.model_validate(run.spec)).items():
        for step in steps:
            head = {"kind": "spans", "rank": rank, "t": 1.0, "step": step, "count": len(spans), "total": len(spans)}
            factory.feed(attempt, rank, encode(head, spans.tobytes()))
        about = {"attempt": attempt, "rank": rank, "step": 3, "size": 4, "part": 0, "of": 1}
        ProfilePart.objects.create(**about, data=b"gzip")
        MemoryRecord.objects.create(attempt=attempt, rank=rank, step=0, peak_total=1, curve=b"old")
    factory.end(run, State.SUCCEEDED)
    Run.objects.filter(pk=run.pk).update(ended_at=timezone.now() - timedelta(hours=1))
    return Run.objects.get(pk=run.pk)


def freed() -> None:
    while control.thin_slice():
        pass
    cache.clear()


def steps_of(run: Run) -> list[int]:
    return selectors.traced_steps(run)


def shown(client: Client, run: Run) -> dict[str, str]:
    """All that the page says of the run without a step being asked for, but not which other steps can be chosen."""
    pages = {tab: client.get(f"/runs/{run.pk}/", {"tab": tab}).content.decode() for tab in TABS}
    pages["gantt"] = client.get(reverse("runs:data", args=(run.pk, "gantt"))).content.decode()
    return {name: CHANGING.sub("", text) for name, text in pages.items()}


@pytest.mark.full
def test_what_the_pages_show_stays_as_it_was(member: Client, alice: Any) -> None:
    run, other = traced(alice), traced(alice)
    before, rows = shown(member, run), SpanChunk.objects.filter(attempt__run=other).count()
    typical = selectors.typical_step(run)
    thinning.thin(runs=[run.pk], user=alice)
    freed()
    kept = [*TRACED][-STEPS:]
    assert steps_of(run) == sorted({*kept, typical}) and len(steps_of(run)) < len(TRACED)
    assert typical is not None and typical == selectors.find_typical_step(run)
    after = shown(member, run)
    for name, text in before.items():
        assert after[name] == text, name
    assert SpanChunk.objects.filter(attempt__run=other).count() == rows and len(steps_of(other)) == len(TRACED)
    assert set(MemoryRecord.objects.filter(attempt__run=run).values_list("step", flat=True)).isdisjoint({0})
    assert ProfilePart.objects.filter(attempt__run=run).exists()
    assert not control.thin_slice(), "there is nothing more"


def test_it_goes_in_small_steps_and_another_controller_goes_on(
    alice: Any, peer: Peer, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = traced(alice, range(1, 12))
    thinning.thin(runs=[run.pk], user=alice)
    monkeypatch.setattr(tidying, "SLICE_BYTES", 1)
    rows = SpanChunk.objects.count()
    assert control.thin_slice() and SpanChunk.objects.count() == rows - 1
    until(controller, lambda: Thinned.objects.get().done)
    assert Thinned.objects.get().done and set(steps_of(run)) >= {*range(7, 12)} and 2 not in steps_of(run)


def test_the_page_that_deletes_offers_it_and_the_run_says_what_was_dropped(member: Client, alice: Any) -> None:
    run = traced(alice)
    page = member.get(f"/runs/delete?runs={run.pk}").content.decode()
    plan = thinning.look(Run.objects.all(), alice)
    assert f"Of {plan.traced} traced steps, the spans of {plan.dropped} are dropped." in page and plan.traced == 29
    answer = member.post(f"/runs/free-space?runs={run.pk}", {"runs": [run.pk]}, follow=True)
    assert answer.redirect_chain[-1][0] == f"/runs/{run.pk}/"
    assert "The space of 1 run is being freed; the numbers stay." in answer.content.decode()
    freed()
    text = member.get(f"/runs/{run.pk}/", {"step": 2}).content.decode()
    assert "Step 2 was not traced, or was dropped." in text
    assert f"The spans of {plan.dropped} older traced steps were dropped on" in text and f"by {alice}, to free" in text
    (event,) = Event.objects.filter(run=run, kind="thinned")
    assert event.actor == alice and f"{plan.dropped} traced steps" in event.text
    again = member.get(f"/runs/delete?runs={run.pk}").content.decode()
    assert "checked required> Drop the files of torch.profiler and memory snapshots (8 B)" in again
    member.post("/runs/free-space", {"runs": [run.pk], "profiles": "on"})
    freed()
    assert (
        not ProfilePart.objects.exists()
        and 'id="free-space"' not in member.get(f"/runs/delete?runs={run.pk}").content.decode()
    )
    events = Event.objects.filter(run=run, kind="thinned").values_list("text", flat=True)
    assert list(events)[1:] == ["The files of torch.profiler and memory snapshots were dropped to free space."]


def test_files_of_torch_profiler_are_said_to_be_dropped_where_there_are_any(alice: Any) -> None:
    """Freed together with others, a run without such files had an event that they were dropped."""
    has, lacks = traced(alice), traced(alice)
    ProfilePart.objects.filter(attempt__run=lacks).delete()
    thinning.thin(runs=[has.pk, lacks.pk], user=alice, profiles=True)
    told = Event.objects.filter(kind="thinned", text__contains="torch.profiler")
    assert list(told.values_list("run", flat=True)) == [has.pk]


def test_the_page_that_deletes_a_study_offers_it_for_all_its_runs(member: Client, alice: Any) -> None:
    study = Study.objects.create(owner=alice, name="mine")
    first, second = (traced(alice, study=study) for _ in range(2))
    page = member.get(f"/studies/{study.pk}/delete/").content.decode()
    assert "Of 58 traced steps of 2 runs, the spans of" in page
    posted = re.findall(r'name="(study|runs)" value="(\d+)"', page)
    assert posted == [("study", str(study.pk)), ("runs", str(first.pk)), ("runs", str(second.pk))]
    asked = {"study": study.pk, "runs": [first.pk, second.pk]}
    answer = member.post("/runs/free-space", asked, follow=True)
    assert answer.redirect_chain[-1][0] == f"/studies/{study.pk}/"
    assert "The space of 2 runs is being freed" in answer.content.decode() and Thinned.objects.count() == 2


def test_only_ended_runs_of_ones_own(member: Client, reader: Client, alice: Any, admin: Any) -> None:
    theirs, queued, late = traced(admin), factory.queued(alice), factory.finished(alice)
    for run, why in ((queued, "It is queued"), (late, "It has just ended")):
        with pytest.raises(Invalid) as caught:
            thinning.thin(runs=[run.pk], user=alice)
        assert why in caught.value.field_errors["run"]
    with pytest.raises(PermissionDenied):
        thinning.thin(runs=[theirs.pk, late.pk], user=alice)
    assert "data-late" in member.get(f"/runs/delete?runs={late.pk}").content.decode()
    page = member.post("/runs/free-space", {"runs": [theirs.pk, queued.pk, late.pk]}, follow=True)
    assert "There is nothing to drop of these runs." in page.content.decode()
    assert reader.post("/runs/free-space", {"runs": [theirs.pk]}).status_code == 403
    assert not Thinned.objects.exists()
    assert thinning.thin(runs=[theirs.pk], user=admin) == 1


def test_a_script_frees_space_and_reads_what_was_dropped(client: Client, alice: Any) -> None:
    run, token = traced(alice), bearer(alice, Scope.SUBMIT)
    path = f"/api/v1/runs/{run.pk}"
    send: Any = {"content_type": "application/json", "headers": token}
    assert client.get(path, headers=token).json()["data"]["thinned"] is None
    refused = client.post(f"{path}/free-space", json.dumps({"all": True}), **send)
    assert refused.status_code == 422 and "all" in refused.content.decode()
    said = client.post(f"{path}/free-space", json.dumps({"profiles": True}), **send).json()["data"]["thinned"]
    assert said["by"] == str(alice) and said["profiles"] and said["dropped"] + len(said["kept"]) == len(TRACED)
    freed()
    missing = client.get(f"{path}/spans", {"step": 2}, headers=token)
    assert missing.status_code == 404 and "was not traced, or was dropped to free space" in missing.content.decode()
    assert client.get(f"{path}/spans", headers=token).json()["data"]["step"] == 29


def test_old_runs_lose_their_traced_steps_but_not_the_files_of_torch_profiler(
    alice: Any, settings: Any, peer: Peer, controller: Controller
) -> None:
    old, young = traced(alice), traced(alice)
    Run.objects.filter(pk=old.pk).update(ended_at=timezone.now() - timedelta(days=31))
    control.thin_old_runs()
    assert not Thinned.objects.exists(), "not by default"
    settings.THIN_AFTER_DAYS = 30
    for _ in range(4):
        controller.turn()
    (one,) = Thinned.objects.all()
    assert one.run == old and one.done and one.by is None and one.by_text == "due to their age"
    assert len(steps_of(old)) < len(steps_of(young)) and ProfilePart.objects.filter(attempt__run=old).exists()
    control.thin_old_runs()
    assert Thinned.objects.count() == 1


def test_a_wrong_number_of_days_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for given in ("x", "-1", "1.5"):
        monkeypatch.setenv("TRAINYARD_THIN_AFTER_DAYS", given)
        with pytest.raises(ImproperlyConfigured, match="TRAINYARD_THIN_AFTER_DAYS is a whole number"):
            whole("TRAINYARD_THIN_AFTER_DAYS", 0)
    monkeypatch.setenv("TRAINYARD_THIN_AFTER_DAYS", " ")
    assert whole("TRAINYARD_THIN_AFTER_DAYS", 7) == 7


def test_how_often_shares_were_measured_is_kept_in_mind(alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The traced steps tell it, which are among those that have shares."""
    run = factory.queued(alice, {"pp": 2})
    attempt = factory.start(run)
    hello = encode({"kind": "hello", "rank": 0, "t": 1.0, "waits": True})
    factory.feed(attempt, 0, hello + points_frame(0, 40, "step_time"))
    for rank in (0, 1):
        spans = b"".join(spans_frame(step, rank=rank, waits=True) for step in (10, 20, 30))
        factory.feed(attempt, rank, spans + waits_frame([3, 7, 10, 11, 15, 19, 20, 23, 27, 30, 31, 35, 39], rank=rank))
    factory.end(run, State.SUCCEEDED)
    Run.objects.filter(pk=run.pk).update(ended_at=timezone.now() - timedelta(hours=1))
    monkeypatch.setattr(thinning, "STEPS", 1)

    def said() -> str:
        return next(metric.measured for metric in metric_rows.metrics_of(run) if metric.name == "bubble_share")

    before = said()
    assert "(one in 4:" in before
    thinning.thin(runs=[run.pk], user=alice)
    freed()
    assert len(steps_of(run)) < 3 and said() == before


def test_a_thinned_run_can_be_deleted(alice: Any) -> None:
    run = traced(alice)
    thinning.thin(runs=[run.pk], user=alice)
    control.thin_slice()
    removal.delete(runs=[run.pk], user=alice)
    while tidying.delete_slice():
        pass
    assert not Thinned.objects.exists() and not SpanChunk.objects.exists()
