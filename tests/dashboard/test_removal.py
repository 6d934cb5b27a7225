"""Deleting runs and studies: who may, when it is refused, and what happens to the checkpoints on the workers' disks."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core.exceptions import PermissionDenied
from django.test import Client
from django.utils import timezone

from dashboard.api.models import Scope
from dashboard.control import heartbeats, tidying
from dashboard.control.controller import Controller
from dashboard.fleet.models import Leftover, Worker
from dashboard.runs import removal, services
from dashboard.runs.models import Attempt, Checkpoint, Corpus, Event, LogChunk, Run, SeriesChunk, State
from dashboard.runs.standing import standing
from dashboard.studies.models import Study
from dashboard.traces.models import Trace
from parallel_core.analysis.quantities import bytes_text
from tests.dashboard import factory
from tests.dashboard.fake_worker import Peer, points_frame
from tests.dashboard.test_api import bearer
from tests.dashboard.test_resume import frame

pytestmark = pytest.mark.django_db


def ended(owner: Any, **about: Any) -> Run:
    """A run on yard-a that ended, with a checkpoint at step 5 and a few points."""
    run = factory.queued(owner, {"dp": 2}, **about)
    attempt = factory.start(run)
    factory.feed(attempt, 0, frame(5, [5]) + points_frame(0, 3))
    Attempt.objects.filter(pk=attempt.pk).update(over=True)
    Run.objects.filter(pk=run.pk).update(state=State.SUCCEEDED)
    return Run.objects.get(pk=run.pk)


def chunk_bytes(run: Run) -> int:
    """Bytes of the points of the run, as they are read back."""
    found = SeriesChunk.objects.filter(attempt__run=run).values_list("data", flat=True)
    assert found
    return sum(map(len, found))


def test_a_study_says_what_its_runs_take_and_the_administration_what_takes_room(
    member: Client, alice: Any, admin: Any
) -> None:
    study = Study.objects.create(owner=alice, name="mine")
    runs = [ended(alice, study=study), ended(alice, study=study)]
    Corpus.objects.create(owner=alice, name="text", sha256="0" * 64, size=3 << 20)
    ended(alice)
    page = member.get(f"/studies/{study.pk}/delete/").content.decode()
    assert f"That is {bytes_text(sum(map(chunk_bytes, runs)))} of the database." in page
    member.force_login(admin)
    index = member.get("/admin/").content.decode()
    rows = dict(re.findall(r">([^<>]+)(?:<br><span[^>]*>[^<]*</span>)?</th><td>([^<]+)</td>", index))
    assert rows["Checkpoints on yard-a"] == bytes_text(3000) and rows["Uploaded texts"] == "3 MiB"
    assert "Database" in rows and "are left on the disk" in index and "Recent actions" in index


def test_everything_of_a_run_goes_and_its_worker_is_to_drop_the_checkpoints(member: Client, alice: Any) -> None:
    run, other = ended(alice), ended(alice)
    page = member.get(f"/runs/delete?runs={run.pk}").content.decode()
    assert f"Delete “{run.name}”?" in page and "1 checkpoint on yard-a (1000 B) will be deleted, too." in page
    assert f"That is {bytes_text(chunk_bytes(run))} of the database." in page
    assert Run.objects.filter(pk=run.pk).exists()
    answer = member.post("/runs/delete", {"runs": [run.pk]}, follow=True)
    assert "1 run was deleted." in answer.content.decode()
    assert list(Run.objects.values_list("pk", flat=True)) == [other.pk]
    while tidying.delete_slice():  # as the controller does in its turns
        pass
    for kind in (Attempt, Checkpoint, Event, SeriesChunk):
        assert kind.objects.exists()
        assert not kind.objects.filter(**{"attempt__run" if kind is SeriesChunk else "run": run.pk}).exists()
    assert list(Leftover.objects.values_list("worker", "run")) == [("yard-a", run.pk)]
    assert member.get(f"/runs/{run.pk}/").status_code == 404


def test_the_list_asks_for_all_ticked_ones_and_says_which_stay(member: Client, alice: Any, admin: Any) -> None:
    first, second, theirs = ended(alice), ended(alice), ended(admin)
    queued = factory.queued(alice, name="still waits")
    query = "&".join(f"runs={run.pk}" for run in (first, second, theirs, queued))
    page = member.get(f"/runs/delete?{query}").content.decode()
    assert "Delete 2 runs?" in page and "Their points" in page and "2 more stay:" in page
    assert "It is queued: cancel it first." in page and f"Only its owner, {admin}, and admins may delete it." in page
    member.post("/runs/delete", {"runs": [run.pk for run in (first, second, theirs, queued)]})
    assert set(Run.objects.values_list("pk", flat=True)) == {theirs.pk, queued.pk}


def test_the_list_and_the_page_offer_it_to_those_who_may(
    member: Client, reader: Client, alice: Any, admin: Any
) -> None:
    mine, theirs, active = ended(alice), ended(admin), factory.queued(alice)
    link = "/runs/delete?runs="
    assert f"{link}{mine.pk}" in member.get(f"/runs/{mine.pk}/").content.decode()
    assert link not in member.get(f"/runs/{theirs.pk}/").content.decode()
    assert link not in member.get(f"/runs/{active.pk}/").content.decode()
    assert "Delete selected" in member.get("/runs/").content.decode()
    assert "Delete selected" not in reader.get("/runs/").content.decode()
    assert reader.get(f"{link}{mine.pk}").status_code == 403
    assert reader.post("/runs/delete", {"runs": [mine.pk]}).status_code == 403


@pytest.mark.parametrize("verb", ["delete", "cancel"])
@pytest.mark.parametrize("asked", ["", "runs=", "runs=999999", "runs=x"])
def test_of_no_known_run_the_list_comes_back_as_it_was_and_says_so(member: Client, verb: str, asked: str) -> None:
    """Who deleted runs in another tab before was told to tick some."""
    gone, none = "None of the selected runs is in this yard any more.", "No run of this yard was selected"
    for answer, said in (
        (member.get(f"/runs/{verb}?tag=x&{asked}", follow=True), gone if "9" in asked else none),
        (member.post(f"/runs/{verb}?tag=x", {"runs": ["999999"]}, follow=True), gone),
    ):
        assert answer.redirect_chain == [("/runs/?tag=x", 302)]
        assert said in answer.content.decode()


def test_deleting_leads_back_to_the_list_as_it_was_filtered(member: Client, alice: Any) -> None:
    run = ended(alice, tags=["x"])
    asked = f"/runs/delete?tag=x&runs={run.pk}"
    page = member.get(asked).content.decode()
    assert 'href="/runs/?tag=x"' in page and 'action="/runs/delete"' not in page, "it posts to its own address"
    assert member.post(asked, {"runs": [run.pk]}).headers["Location"] == "/runs/?tag=x"
    assert not Run.objects.exists()


def test_who_keeps_a_run_returns_to_the_page_they_came_from(member: Client, alice: Any, admin: Any) -> None:
    mine, theirs = ended(alice, tags=["x"]), ended(admin)
    head = html.unescape(member.get(f"/runs/{mine.pk}/").content.decode())
    link = next(part for part in head.split('"') if part.startswith("/runs/delete"))
    assert f'href="/runs/{mine.pk}/">Keep it' in member.get(link).content.decode()
    assert (
        f'href="/runs/{theirs.pk}/">Back to the run'
        in member.get(f"/runs/delete?runs={theirs.pk}&from=run").content.decode()
    )
    assert 'href="/runs/?tag=x">Keep it' in member.get(f"/runs/delete?tag=x&runs={mine.pk}").content.decode()
    assert member.post(link, {"runs": [mine.pk]}).headers["Location"] == "/runs/", "its page is gone"


def test_a_run_that_another_goes_on_from_stays_until_that_has_ended(alice: Any) -> None:
    run = ended(alice)
    spec = {**run.spec, "train": {**run.spec["train"], "steps": 60}}
    later = services.submit(owner=alice, spec=spec, name="later", resume_from={"run": run.pk, "step": 5})
    with pytest.raises(services.Invalid, match="“later” goes on from its checkpoint"):
        removal.delete(runs=[run.pk], user=alice)
    Run.objects.filter(pk=later.pk).update(state=State.FAILED)
    assert removal.delete(runs=[run.pk], user=alice) == 1
    later.refresh_from_db()
    assert (later.resume_run_id, later.resume_step) == (None, 5), "it still did not begin with step 0"
    assert later.resumes_from is None, "there is no checkpoint left"


def test_all_or_none(alice: Any, admin: Any) -> None:
    mine, theirs = ended(alice), ended(admin)
    with pytest.raises(PermissionDenied, match=f"Only its owner, {admin}"):
        removal.delete(runs=[mine.pk, theirs.pk], user=alice)
    assert Run.objects.count() == 2
    assert removal.delete(runs=[mine.pk, theirs.pk], user=admin) == 2


def test_a_worker_is_asked_until_it_says_that_they_are_gone(alice: Any, peer: Peer, controller: Controller) -> None:
    run = ended(alice)
    removal.delete(runs=[run.pk], user=alice)
    for _ in range(2):  # the first order may be lost
        peer.beat()
        controller.turn()
        orders = [(entry["kind"], entry["attempt"]) for entry in peer.orders()]
        assert orders == [("drop", run.pk)]
    peer.say("dropped", {"run": run.pk})
    peer.beat()
    controller.turn()
    assert not Leftover.objects.exists() and not peer.orders()


@pytest.mark.parametrize("first", ["the run", "the worker"])
def test_a_worker_that_was_removed_deletes_them_when_it_is_back(
    first: str, alice: Any, peer: Peer, controller: Controller
) -> None:
    run = ended(alice)
    deletions = [lambda: removal.delete(runs=[run.pk], user=alice), Worker.objects.all().delete]
    for delete in deletions if first == "the run" else reversed(deletions):
        delete()
    peer.beat()
    controller.turn()
    assert [(entry["kind"], entry["attempt"]) for entry in peer.orders()] == [("drop", run.pk)]


def test_what_a_worker_should_delete_is_forgotten_if_it_never_comes_back(alice: Any) -> None:
    factory.worker("yard-b")
    Leftover.objects.bulk_create(Leftover(worker=name, run=1) for name in ("yard-b", "gone", "just-gone"))
    long_ago = timezone.now() - timedelta(days=removal.LEFTOVER_DAYS + 1)
    Leftover.objects.exclude(worker="just-gone").update(created_at=long_ago)
    removal.delete(runs=[ended(alice).pk], user=alice)
    assert set(Leftover.objects.values_list("worker", flat=True)) == {"yard-a", "yard-b", "just-gone"}


def test_many_deleted_runs_do_not_crowd_out_other_orders(
    peer: Peer, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "MOST_DROPS", 3)
    Leftover.objects.bulk_create(Leftover(worker="yard-a", run=run) for run in range(1, 9))
    for most in (3, 3, 2):
        peer.beat()
        controller.turn()
        dropped = {entry["attempt"] for entry in peer.orders() if entry["kind"] == "drop"}
        assert len(dropped) == most
        for run in dropped:
            peer.say("dropped", {"run": run})
        controller.turn()
    assert not Leftover.objects.exists()


def test_what_still_comes_of_a_deleted_run_is_dropped(alice: Any, peer: Peer, controller: Controller) -> None:
    run = ended(alice)
    attempt = run.attempts.get().pk
    removal.delete(runs=[run.pk], user=alice)
    peer.send(attempt, b"a late line\n", channel="log")
    controller.turn()
    assert not LogChunk.objects.exists()
    assert {(entry["kind"], entry["attempt"]) for entry in peer.orders()} >= {("settled", attempt)}


def test_a_study_goes_with_its_runs_once_they_have_ended(member: Client, reader: Client, alice: Any) -> None:
    study = Study.objects.create(name="which is best", owner=alice, kind="fit")
    run, last = ended(alice, study=study), factory.queued(alice, study=study)
    address = f"/studies/{study.pk}/delete/"
    assert reader.post(address).status_code == 403
    page = member.get(address).content.decode()
    assert "cannot be deleted yet" in page and "It is queued: cancel it first." in page
    assert member.post(address).status_code == 302 and Study.objects.exists()
    Run.objects.filter(pk=last.pk).update(state=State.CANCELLED)
    with pytest.raises(services.Invalid, match="delete the study as a whole"):
        removal.delete(runs=[run.pk], user=alice)
    assert address in member.get(f"/studies/{study.pk}/").content.decode()
    page = member.get(address).content.decode()
    assert "Its 2 runs go with it for good" in page and "1 checkpoint on yard-a" in page
    assert "“which is best” was deleted." in member.post(address, follow=True).content.decode()
    assert not Study.objects.exists() and not Run.objects.exists()
    assert Leftover.objects.filter(run=run.pk).exists()


def test_of_very_many_runs_that_keep_a_study_it_says_how_many_are_listed(member: Client, alice: Any) -> None:
    study = Study.objects.create(name="large", owner=alice, kind="matrix")
    queued = [factory.queued(alice, study=study).pk for _ in range(51)]
    for address in (f"/studies/{study.pk}/delete/", f"/runs/delete?runs={','.join(map(str, queued))}"):
        page = member.get(address).content.decode()
        assert page.count("cancel it first.") == 50 and "50 of 51 are listed." in page, address


def test_whose_run_keeps_a_study_is_said_to_who_may_not_cancel_it(
    client: Client, member: Client, alice: Any, admin: Any
) -> None:
    """The study's owner was told to cancel a run that an admin had run again, which only admins may."""
    study = Study.objects.create(name="hers", owner=alice, kind="matrix")
    factory.queued(admin, study=study)
    address, theirs = f"/studies/{study.pk}/delete/", "It is queued: only its owner, root, and admins may cancel it."
    assert theirs in member.get(address).content.decode()
    refused = client.delete(f"/api/v1/studies/{study.pk}", headers=bearer(alice, Scope.SUBMIT))
    assert refused.status_code == 422 and theirs in refused.json()["error"]["fields"]["study"]
    member.force_login(admin)
    assert "It is queued: cancel it first." in member.get(address).content.decode()


def test_the_oldest_run_left_of_a_setting_becomes_its_first(alice: Any) -> None:
    study = Study.objects.create(name="thrice", owner=alice, kind="matrix")
    first, other = ended(alice, study=study), ended(alice, study=study)
    second, third, fourth = (ended(alice, study=study, repeats=first.pk) for _ in range(3))
    removal.delete(runs=[first.pk, second.pk], user=alice)
    left = dict(Run.objects.values_list("pk", "repeats"))
    assert left == {other.pk: None, third.pk: None, fourth.pk: third.pk}
    assert len(standing(study.runs.all())) == 2


def test_a_baseline_that_was_run_again_stays_the_studys_when_one_of_its_runs_goes(alice: Any) -> None:
    """The study fell back to another baseline than the one that somebody had kept, without a word."""
    study = Study.objects.create(name="kept", owner=alice, kind="matrix")
    ended(alice, study=study)
    first = ended(alice, study=study)
    second, third = (ended(alice, study=study, repeats=first.pk) for _ in range(2))
    Study.objects.update(baseline=second)
    removal.delete(runs=[first.pk, second.pk], user=alice)
    study.refresh_from_db()
    assert study.baseline == third
    removal.delete(runs=[third.pk], user=alice)
    study.refresh_from_db()
    assert study.baseline is None
    assert [event.text for event in study.history] == [
        f"The baseline “{second.name}” was deleted; “{third.name}” is it now.",
        f"The baseline “{third.name}” was deleted.",
    ]


def test_the_api_deletes_what_has_ended(client: Client, alice: Any, bob: Any) -> None:
    study = Study.objects.create(name="s", owner=alice, kind="matrix")
    run, active = ended(alice), factory.queued(alice, study=study)
    mine, theirs = bearer(alice, Scope.SUBMIT), bearer(bob, Scope.SUBMIT)
    assert client.delete(f"/api/v1/runs/{run.pk}", headers=theirs).status_code == 403
    assert client.delete(f"/api/v1/runs/{run.pk}", headers=bearer(alice, Scope.READ)).status_code in (401, 403)
    assert client.delete(f"/api/v1/runs/{run.pk}", headers=mine).status_code == 204
    assert client.delete(f"/api/v1/runs/{run.pk}", headers=mine).status_code == 404
    refused = client.delete(f"/api/v1/runs/{active.pk}", headers=mine)
    assert refused.status_code == 422 and "cancel it first" in refused.json()["error"]["fields"]["run"]
    assert client.delete(f"/api/v1/studies/{study.pk}", headers=mine).status_code == 422
    Run.objects.filter(pk=active.pk).update(state=State.CANCELLED)
    assert client.delete(f"/api/v1/studies/{study.pk}", headers=mine).status_code == 204
    assert not Run.objects.exists() and not Study.objects.exists()


def test_admins_still_see_who_deleted_a_study_and_what_had_been_changed_of_it(
    member: Client, alice: Any, admin: Any
) -> None:
    study = Study.objects.create(owner=alice, name="new name", kind="matrix")
    study.events.create(kind="edited", text="alice renamed it from “old name”.", actor=alice)
    run = ended(alice, name="inside", study=study)
    member.force_login(alice)
    assert member.post(f"/studies/{study.pk}/delete/").status_code == 302
    member.force_login(admin)
    listed = member.get("/admin/admin/logentry/?q=new+name").content.decode()
    assert f"study {study.pk}, &#x27;new name&#x27;, of {alice.get_username()}" in listed and "inside" not in listed
    entry = LogEntry.objects.get(object_repr__startswith=f"study {study.pk}")
    shown = member.get(f"/admin/admin/logentry/{entry.pk}/change/").content.decode()
    assert entry.user == alice and "UTC: alice renamed it from “old name”." in shown
    assert LogEntry.objects.filter(object_repr__startswith=f"run {run.pk}, 'inside'").exists()


def test_the_log_says_who_deleted_what(
    member: Client,
    alice: Any,
    admin: Any,
    caplog: pytest.LogCaptureFixture,
    django_capture_on_commit_callbacks: Any,
) -> None:
    study = Study.objects.create(owner=alice, name="mine", kind="matrix")
    alone, inside = ended(alice, name="alone"), ended(alice, name="two\nlines", study=study)
    text = Corpus.objects.create(owner=alice, name="tale.txt", sha256="0" * 64, size=3)
    trace = Trace.objects.create(owner=alice, name="rank0.json")
    addresses = ["/runs/delete", f"/studies/{study.pk}/delete/", f"/runs/texts/{text.pk}/delete"]
    member.force_login(admin)
    with caplog.at_level("INFO", "dashboard.deletions"), django_capture_on_commit_callbacks(execute=True):
        for address in (*addresses, f"/traces/{trace.pk}/delete/"):
            assert member.post(address, {"runs": alone.pk}).status_code == 302, address
    who, of = admin.get_username(), f"of {alice.get_username()}"
    assert [record.getMessage() for record in caplog.records if record.name == "dashboard.deletions"] == [
        f"{who} deleted run {alone.pk}, 'alone', {of}",
        f"{who} deleted study {study.pk}, 'mine', {of}",
        f"{who} deleted run {inside.pk}, 'two\\nlines', {of}",
        f"{who} deleted text {text.pk}, 'tale.txt', {of}",
        f"{who} deleted trace {trace.pk}, 'rank0.json', {of}",
    ]
