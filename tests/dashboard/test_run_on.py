"""On which devices a run may be placed: what can be chosen, what is refused, what is waited for, and how it changes."""

from __future__ import annotations

import html
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.test import Client
from django.utils import timezone

from dashboard.accounts.roles import make_member
from dashboard.api.models import Scope
from dashboard.control.placing import place_queued
from dashboard.fleet.models import Worker
from dashboard.fleet.run_on import ANYWHERE, RunOn
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.runs import selectors, services, states, submission
from dashboard.runs.models import Event, Run, State
from dashboard.runs.waiting import asking, queueing, run_on
from dashboard.runs.waiting.priority import Priority
from dashboard.studies import joining, reruns
from dashboard.studies.models import Study
from dashboard.studies.new.axes import Axes, Swept
from dashboard.studies.services import InQueue, create_matrix, create_sweep
from tests.dashboard import factory
from tests.dashboard.new_study import MATRIX, NEW, preview
from tests.dashboard.test_api import TINY, bearer, post
from tests.dashboard.test_forms import filled

pytestmark = pytest.mark.usefixtures("fleet", "redis_url")
OLD, NEWER = "EPYC 7B13", "EPYC 9B14"
GIB = 1 << 30


def named(name: str, types: list[str], size: int = 4 * GIB) -> Worker:
    """A live worker with a device of each of these types."""
    made = factory.sized(name, *[size] * len(types))
    made.devices = [
        {**one, "name": f"{kind}, core {i}"} for i, (one, kind) in enumerate(zip(made.devices, types, strict=True))
    ]
    made.heartbeat_at = timezone.now() + timedelta(hours=1)  # still fresh at the end of a test on a busy host
    made.save()
    return made


@pytest.fixture
def fleet(db: None) -> None:
    """Two old devices on yard-a; four new ones on yard-b; one of each on yard-c."""
    named("yard-a", [OLD] * 2)
    named("yard-b", [NEWER] * 4)
    named("yard-c", [OLD, NEWER], size=GIB)


def spec(dp: int = 1, **train: Any) -> dict[str, Any]:
    return factory.spec_of({"dp": dp}, **train)


def sentence(run: Run) -> str:
    return selectors.waiting(run).sentence


def in_queue(where: str, priority: Priority = Priority.NORMAL) -> InQueue:
    return InQueue(RunOn.read(where), priority)


def refused(dp: int, where: str) -> str:
    return submission.assess(spec(dp), where=where).errors.get("run_on", "")


@pytest.mark.parametrize("on", [ANYWHERE, RunOn(worker="a: b"), RunOn(device_type="NVIDIA H100 80GB HBM3")])
def test_a_choice_reads_what_it_writes(on: RunOn) -> None:
    assert RunOn.read(str(on)) == on
    assert bool(on) == (on != ANYWHERE)


@pytest.mark.parametrize("written", ["yard-a", "host:yard-a", "worker:", "worker: ", "type"])
def test_a_text_that_names_no_devices_is_none(written: str) -> None:
    with pytest.raises(ValueError, match="names no devices; write worker:NAME, type:NAME"):
        RunOn.read(written)


def test_the_form_offers_types_and_workers_as_fleet_names_them() -> None:
    Worker.objects.filter(name="yard-c").update(draining=True)
    found: dict[str, Any] = dict(run_on.choices(FleetSnapshot.now(), "worker:gone"))
    assert found[""] == "any device" and found["worker:gone"] == "worker gone: not in the fleet"
    assert dict(found["Device type"]) == {
        f"type:{OLD}": f"{OLD}: 3 devices of 2 workers",
        f"type:{NEWER}": f"{NEWER}: 5 devices of 2 workers",
    }
    assert dict(found["Worker"])["worker:yard-a"] == "yard-a: 2 CPU devices"
    assert dict(found["Worker"])["worker:yard-c"] == "yard-c: 2 CPU devices, draining"


@pytest.mark.parametrize(
    ("dp", "where", "says"),
    [
        (1, "worker:yard-d", "This fleet has no worker “yard-d”; the nearest are"),
        (1, "type:EPYC 9B15", f"This fleet has no device of the type “EPYC 9B15”; the nearest are {NEWER} and {OLD}."),
        (4, "worker:yard-a", "Worker yard-a has 2 CPU devices; 4 are needed. Enough: worker yard-b and EPYC 9B14."),
        (4, f"type:{OLD}", f"Of {OLD} the fleet has 3 CPU devices for one run; 4 are needed. Enough: {NEWER} and"),
        (1, "yard-a", "names no devices; write worker:NAME"),
        (2, "worker:yard-a", ""),
        (3, f"type:{OLD}", ""),
    ],
)
def test_a_choice_that_can_never_be_is_refused_with_those_that_can(dp: int, where: str, says: str) -> None:
    found = submission.assess(factory.spec_of({"dp": dp}, global_batch=12 if dp == 3 else 16), where=where).errors
    assert says in found.get("run_on", "") and bool(found) == bool(says), found


def test_a_worker_that_is_away_can_be_chosen_and_its_own_devices_count() -> None:
    Worker.objects.filter(name="yard-b").update(heartbeat_at=timezone.now() - timedelta(hours=1))
    found = submission.assess(spec(4), where="worker:yard-b")
    assert not found.errors and found.waits == "Too few such devices take runs now: yard-b is silent."
    assert "Worker yard-b has 4 CPU devices; 8 are needed." in refused(8, "worker:yard-b")


def test_a_worker_without_the_token_file_or_such_devices_is_refused() -> None:
    file = {"name": "web.bin", "tokens": 10_000, "vocab": 64}
    Worker.objects.filter(name="yard-a").update(token_files=[file])
    asked = spec(corpus="tokens:web.bin")
    assert submission.assess(asked, where="worker:yard-b").errors["run_on"] == (
        "What the run reads is not there; it is on yard-a."
    )
    assert "run_on" not in submission.assess(asked, where="worker:yard-a").errors
    no_gpu = submission.assess(spec(device="cuda"), where="worker:yard-a").errors["run_on"]
    assert no_gpu == "Worker yard-a has no GPU; 1 is needed."


def test_the_panel_judges_against_the_chosen_devices() -> None:
    anywhere, there = (submission.assess(spec(), where=where) for where in ("", "worker:yard-c"))
    assert anywhere.capacity and there.capacity
    assert (anywhere.capacity.memory, there.capacity.memory) == (4 * GIB, GIB)
    assert (anywhere.capacity.total, there.capacity.total) == (8, 2)
    assert submission.assess(spec(2), where="type:" + OLD).capacity.largest == 2  # type: ignore[union-attr]
    too_large = {
        **factory.spec_of({"micro_batches": 4}),
        "model": {"layers": 24, "hidden": 512, "heads": 8, "seq": 512},
    }
    assert submission.assess(too_large, where="worker:yard-c").memory_error
    assert not submission.assess(too_large, where="worker:yard-a").memory_error


def test_several_hosts_are_refused_where_one_worker_was_chosen() -> None:
    found = submission.assess(spec(2), host_count=2, where="worker:yard-a").errors
    assert found["hosts"] == "All ranks must be on one host, because worker yard-a was chosen for it."


def test_a_run_says_that_it_waits_for_the_devices_that_were_chosen(alice: Any) -> None:
    run = factory.queued(alice, {"dp": 2}, run_on="worker:yard-a")
    assert sentence(run) == "Starts now."
    nodes = [{"worker": "yard-a", "devices": [0], "first_rank": 0}]
    states.place(factory.queued(alice), nodes, Worker.objects.get(name="yard-a"))
    assert sentence(run) == "Waits for 2 CPU devices of worker yard-a, chosen for it, which has 1 of 2 devices free."
    Worker.objects.filter(name="yard-a").update(draining=True)
    assert sentence(run) == "Waits for worker yard-a, chosen for it, which is draining."
    Worker.objects.filter(name="yard-a").update(heartbeat_at=timezone.now() - timedelta(hours=1))
    assert sentence(run) == "Waits for worker yard-a, chosen for it, which is silent (heard 1 h ago)."


def test_who_is_to_be_alone_and_who_waits_for_that_are_told_apart(alice: Any) -> None:
    timed, plain = (factory.queued(alice, exclusive=exclusive, run_on="worker:yard-a") for exclusive in (True, False))
    nodes = [{"worker": "yard-a", "devices": [0], "first_rank": 0}]
    other = factory.queued(alice)
    states.place(other, nodes, Worker.objects.get(name="yard-a"))
    assert sentence(timed).startswith(
        "Waits for 1 CPU device: yard-a must be idle, as timed runs share a host with nothing"
    )
    factory.end(other, State.SUCCEEDED)
    states.place(timed, nodes, Worker.objects.get(name="yard-a"))
    assert sentence(plain) == "Waits for 1 CPU device: a timed run has yard-a to itself."


def test_a_run_says_that_its_choice_has_become_impossible(alice: Any) -> None:
    run = factory.queued(alice, {"dp": 2}, run_on="worker:yard-a")
    of_type = factory.queued(alice, {"dp": 4}, run_on=f"type:{NEWER}")
    Worker.objects.filter(name="yard-a").update(devices=Worker.objects.get(name="yard-a").devices[:1])
    assert sentence(run) == "Needs 2 CPU devices; worker yard-a has 1 CPU device, chosen for it. Choose where it runs."
    Worker.objects.filter(name__in=("yard-a", "yard-b")).delete()
    assert sentence(run).startswith("It was to run on worker yard-a. This fleet has no worker “yard-a”; the nearest")
    assert f"Needs 4 CPU devices; of {NEWER} the fleet has 1 CPU device for one run" in sentence(of_type)


def test_a_run_goes_only_where_it_was_chosen_to_go(alice: Any) -> None:
    chosen = (f"type:{OLD}", f"type:{NEWER}", "worker:yard-c")
    runs = [factory.queued(alice, {"dp": 2}, run_on=where) for where in chosen]
    names = ("yard-a", "yard-b", "yard-c")
    placed = {attempt.run_id: attempt.devices for attempt in place_queued(names, names)}
    where = [[(node["worker"], node["devices"]) for node in placed[run.pk]] for run in runs]
    assert where == [[("yard-a", [0, 1])], [("yard-b", [0, 1])], [("yard-c", [0, 1])]]


def test_a_run_shows_its_choice_and_clone_and_resume_keep_it(member: Client, alice: Any) -> None:
    run = factory.finished(alice, run_on="worker:yard-c", name="there")
    factory.finished(alice, name="anywhere")
    page = member.get(f"/runs/{run.pk}/").content.decode()
    assert "to run on worker yard-c" in page
    listed = member.get("/runs/").content.decode()
    assert listed.count("on worker yard-c") == 1
    clone = member.get(f"/runs/{run.pk}/clone").content.decode()
    assert '<option value="worker:yard-c" selected>' in clone
    sweep = member.get(f"/studies/new/?kind=sweep&run={run.pk}").content.decode()
    assert '<option value="worker:yard-c" selected>' in sweep


def test_new_run_queues_with_place_and_priority_and_refuses_at_the_field(member: Client) -> None:
    answer = member.post("/runs/new/", filled(run_on="worker:yard-c", priority="low"))
    assert answer.status_code == 302
    run = Run.objects.get()
    assert (run.run_on, run.priority) == ("worker:yard-c", Priority.LOW)
    answer = member.post("/runs/new/", filled(run_on="worker:yard-x", priority="high"))
    text = html.unescape(answer.content.decode())
    assert answer.status_code == 422 and Run.objects.count() == 1
    assert '<option value="worker:yard-x" selected>' in text and "This fleet has no worker “yard-x”" in text
    answer = member.post("/runs/new/", filled(priority="high"))
    assert answer.status_code == 422 and "Only admins may queue at high priority" in answer.content.decode()
    answer = member.post("/runs/new/", filled(priority="urgent"))
    assert answer.status_code == 422 and "Priority must be low, normal or high; got urgent." in answer.content.decode()


def test_a_queued_run_is_put_elsewhere_on_its_page(member: Client, alice: Any, bob: Any) -> None:
    run = factory.queued(alice, {"dp": 2})
    address = f"/runs/{run.pk}/queue"
    assert address in member.get(f"/runs/{run.pk}/").content.decode()
    assert member.get(address).status_code == 200
    answer = member.post(address, {"run_on": "worker:yard-x", "priority": "normal"})
    assert answer.status_code == 422 and "This fleet has no worker" in answer.content.decode()
    assert member.post(address, {"run_on": "worker:yard-b", "priority": "low"}).status_code == 302
    run.refresh_from_db()
    assert (run.run_on, run.priority) == ("worker:yard-b", Priority.LOW)
    event = Event.objects.get(run=run, kind="queue")
    assert event.actor == alice and event.text == (
        "alice queued it to run on worker yard-b, instead of any device and at low priority, instead of normal."
    )
    stranger = Client()
    stranger.force_login(bob)
    assert stranger.post(address, {"run_on": "", "priority": "normal"}).status_code == 403
    factory.start(run)
    assert member.post(address, {"run_on": "", "priority": "normal"}).status_code == 302
    run.refresh_from_db()
    assert run.run_on == "worker:yard-b", "it is not queued any more"
    assert address not in member.get(f"/runs/{run.pk}/").content.decode()


def test_a_page_of_the_queue_that_was_opened_before_somebody_else_changed_it_keeps_that(
    member: Client, alice: Any, admin: Any
) -> None:
    """Who only chose other devices took the high priority back that an admin had given meanwhile."""
    run = factory.queued(alice)
    address = f"/runs/{run.pk}/queue"
    page = member.get(address).content.decode()
    shown = dict(re.findall(r'<input type="hidden" name="(was-[a-z_]+)" value="([^"]*)">', page))
    assert shown == {"was-run_on": "", "was-priority": "normal"}
    queueing.change(run=run, user=admin, priority=Priority.HIGH)
    sent = {**shown, "run_on": "worker:yard-b", "priority": "normal"}
    assert member.post(address, sent).status_code == 302
    run.refresh_from_db()
    assert (run.run_on, run.priority) == ("worker:yard-b", Priority.HIGH)


def test_a_study_has_one_place_and_one_priority_for_its_runs(admin: Any) -> None:
    queue, strategies = in_queue("worker:yard-c", Priority.HIGH), ["single", "dp"]
    study = create_matrix(owner=admin, name="s", base=factory.BASE, axes=Axes(strategies), queue=queue)
    assert {(run.run_on, run.priority) for run in study.runs.all()} == {("worker:yard-c", Priority.HIGH)}
    added = joining.submit(owner=admin, study=study, request={"spec": spec(2), "run_on": "worker:yard-a"})
    assert (added.run_on, added.priority) == ("worker:yard-c", Priority.HIGH)
    with pytest.raises(services.Invalid) as wrong:
        queueing.change(run=added, user=admin, run_on=f"type:{OLD} x", priority=Priority.HIGH)
    assert set(wrong.value.field_errors) == {"run_on"}
    queueing.change(run=added, user=admin, run_on="worker:yard-a", priority=Priority.LOW)
    study.refresh_from_db()
    assert {(run.run_on, run.priority) for run in study.runs.all()} == {("worker:yard-a", Priority.LOW)}
    assert (study.run_on, study.priority) == ("worker:yard-a", Priority.LOW)


def test_only_admins_are_offered_the_priority_that_only_they_may_queue_at(
    member: Client, alice: Any, admin: Any
) -> None:
    study, option = factory.study(alice, splits=({},), recompute=False), '<option value="high"'
    addresses = ("/runs/new/", "/studies/new/", f"/studies/{study.pk}/edit/")
    assert not any(option in member.get(address).content.decode() for address in addresses)
    asked = member.post("/runs/new/", filled(priority="high")).content.decode()
    assert f"{option} selected" in asked and "Only admins may queue" in asked, "what was sent stands there"
    Study.objects.update(priority=Priority.HIGH)
    assert f"{option} selected" in member.get(addresses[-1]).content.decode()
    member.force_login(admin)
    assert all(option in member.get(address).content.decode() for address in addresses)


def test_a_study_without_a_queued_run_is_put_elsewhere_and_what_joins_it_follows(member: Client, alice: Any) -> None:
    study = factory.study(alice, splits=({}, {"dp": 2}), recompute=False)
    assert not study.runs.filter(state="queued").exists()
    address = f"/studies/{study.pk}/edit/"
    page = member.get(address).content.decode()
    assert '<option value="" selected>any device' in page and "Nothing of it is queued now" in page
    words = {"name": "elsewhere", "notes": ""}
    assert member.post(address, {**words, "run_on": "worker:yard-a", "priority": "low"}).status_code == 302
    study.refresh_from_db()
    assert (study.name, study.run_on, study.priority) == ("elsewhere", "worker:yard-a", Priority.LOW)
    assert '<span class="part">on worker yard-a</span>' in member.get(f"/studies/{study.pk}/").content.decode()
    added = joining.submit(owner=alice, study=study, request={"spec": spec()})
    assert (added.run_on, added.priority) == ("worker:yard-a", Priority.LOW)
    assert "Of its 1 queued run," in member.get(address).content.decode()
    assert member.post(address, {"name": "kept place", "notes": ""}).status_code == 302
    assert member.post(address, {**words, "run_on": f"type:{NEWER}", "priority": "low"}).status_code == 302
    added.refresh_from_db()
    assert added.run_on == f"type:{NEWER}"
    assert "alice queued it to run on" in Event.objects.filter(run=added, kind=queueing.KIND).get().text


def test_a_study_goes_nowhere_where_a_queued_run_of_it_never_could(member: Client, alice: Any, bob: Any) -> None:
    study = create_matrix(owner=alice, name="s", base=factory.BASE, axes=Axes(["single", "dp"], devices=4))
    address, words = f"/studies/{study.pk}/edit/", {"name": "new", "notes": "", "priority": "normal"}
    for sent, said in (
        ({"run_on": "worker:yard-a"}, "”: Worker yard-a has 2 CPU devices; 4 are needed."),
        ({"run_on": "worker:gone"}, "This fleet has no worker “gone”"),
        ({"run_on": "", "priority": "high"}, "Only admins may queue at high priority"),
        ({"run_on": "worker:yard-a", "name": " "}, "A study needs a name."),
    ):
        wrong = member.post(address, {**words, **sent})
        assert wrong.status_code == 422 and said in html.unescape(wrong.content.decode()), said
    study.refresh_from_db()
    assert (study.name, study.run_on, study.priority) == ("s", "", Priority.NORMAL), "all or nothing"
    assert set(study.runs.values_list("run_on", flat=True)) == {""}
    study.runs.all().delete()
    with pytest.raises(services.Invalid, match="This fleet has no worker “gone”"):
        queueing.change_study(study=study, user=alice, run_on="worker:gone")
    with pytest.raises(PermissionDenied):
        queueing.change_study(study=study, user=bob, run_on="worker:yard-a")


def test_what_a_request_leaves_out_stays_as_somebody_else_has_just_written_it(
    alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the rows are locked that the request changes: it has read them before."""
    study = create_matrix(owner=alice, name="s", base=factory.BASE, axes=Axes(["single", "dp"]))
    run = factory.queued(alice, name="r")
    real_study, real_run = queueing.change_study, queueing.change

    def written_before(rows: Any, action: Any) -> Any:
        def changed(**asked: Any) -> Any:
            rows.update(name="theirs", notes="theirs")
            return action(**asked)

        return changed

    monkeypatch.setattr(queueing, "change_study", written_before(Study.objects.filter(pk=study.pk), real_study))
    monkeypatch.setattr(queueing, "change", written_before(Run.objects.filter(pk=run.pk), real_run))
    client, headers = Client(), bearer(alice, Scope.SUBMIT)
    for path, sent in ((f"studies/{study.pk}", {"notes": "mine"}), (f"runs/{run.pk}", {"tags": ["mine"]})):
        body = json.dumps({"run_on": "worker:yard-a", **sent})
        answer = client.patch(f"/api/v1/{path}", body, content_type="application/json", headers=headers)
        assert answer.status_code == 200, answer.content
    study.refresh_from_db()
    run.refresh_from_db()
    assert (study.name, study.notes, study.run_on) == ("theirs", "mine", "worker:yard-a")
    assert (run.name, run.notes, run.tags, run.run_on) == ("theirs", "theirs", ["mine"], "worker:yard-a")


def test_the_owner_of_one_run_does_not_move_the_study_of_somebody_else(alice: Any, admin: Any) -> None:
    """Such as an administrator's run in it who is none any more."""
    study = create_matrix(owner=alice, name="s", base=factory.BASE, axes=Axes(["single", "dp"]))
    added = joining.submit(owner=admin, study=study, request={"spec": spec()})
    former = make_member(admin)
    former.is_staff = former.is_superuser = False
    former.save()
    page = Client()
    page.force_login(former)
    assert f"/runs/{added.pk}/queue" not in page.get(f"/runs/{added.pk}/").content.decode()
    sent = {"run_on": "worker:yard-b", "priority": "low"}
    assert page.post(f"/runs/{added.pk}/queue", sent).status_code == 403
    with pytest.raises(PermissionDenied, match="Only the study's owner and admins"):
        queueing.change(run=added, user=former, run_on="worker:yard-b")
    assert set(study.runs.values_list("run_on", "priority")) == {("", Priority.NORMAL)}
    queueing.change_study(study=study, user=alice, run_on="worker:yard-b")
    assert set(study.runs.values_list("run_on", flat=True)) == {"worker:yard-b"}


def test_each_queued_run_of_a_study_is_looked_at_if_what_it_writes_keeps_it_on_one_host(alice: Any) -> None:
    """Two runs of three ranks, of which one writes checkpoints: no worker with such devices has three of them."""
    study = Study.objects.create(name="s", owner=alice)
    named("yard-c", [OLD, NEWER])
    for position, every in enumerate((0, 5)):
        train = {"global_batch": 12, "checkpoint_every": every}
        factory.queued(alice, {"dp": 3}, name=f"each {every}", study=study, position=position, train=train)
    with pytest.raises(services.Invalid, match="“each 5”: Of EPYC 7B13 the fleet has 2 CPU devices for one run"):
        queueing.change_study(study=study, user=alice, run_on=f"type:{OLD}")


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite has one writer at a time")
@pytest.mark.django_db(transaction=True)
def test_a_run_that_joins_a_study_while_that_is_put_elsewhere_goes_there(alice: Any) -> None:
    study = create_matrix(owner=alice, name="s", base=factory.BASE, axes=Axes(["single", "dp"]))
    (first, *others), joined = study.runs.order_by("pk"), threading.Event()

    def join() -> None:
        try:
            joining.submit(owner=alice, study=study, request={"spec": spec()}, also=lambda _: wait_for_the_other())
        finally:
            connection.close()

    def wait_for_the_other() -> None:
        joined.set()
        for _ in range(500):  # until the other transaction waits for a lock of this one
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
                if cursor.fetchone()[0]:
                    return
            time.sleep(0.01)

    def change() -> None:
        try:
            joined.wait(30)
            queueing.change(run=first, user=alice, run_on="worker:yard-b")
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(join), pool.submit(change)]:
            done.result()
    assert list(study.runs.values_list("run_on", flat=True)) == ["worker:yard-b"] * (len(others) + 2)


def test_what_is_run_again_goes_where_its_study_went_since_that_was_read(alice: Any) -> None:
    study = factory.study(alice, splits=({}, {"dp": 2}), recompute=False)
    Study.objects.filter(pk=study.pk).update(run_on="worker:yard-a", priority=Priority.LOW)  # since it was read
    assert study.run_on == ""
    again = reruns.run_again(study=study, user=alice, which=list)
    assert {(run.run_on, run.priority) for run in again} == {("worker:yard-a", Priority.LOW)}


def test_what_of_a_study_does_not_fit_where_it_is_to_go_is_refused_or_left_out(alice: Any) -> None:
    asked = {"owner": alice, "name": "s", "base": spec(), "swept": Swept("parallel.dp", ["2", "4"])}
    study = create_sweep(**asked, queue=in_queue("worker:yard-c"))
    assert [run.devices for run in study.runs.all()] == [2]
    ((_, why),) = study.settings["skipped"]
    assert "Worker yard-c has 2 CPU devices; 4 are needed." in why
    study = create_sweep(**asked)
    run = study.runs.get(devices=2)
    with pytest.raises(services.Invalid, match="of the same study: Worker yard-a has 2 CPU devices; 4 are needed"):
        queueing.change(run=run, user=alice, run_on="worker:yard-a", priority=Priority.NORMAL)
    for wrong, field in ((in_queue("worker:gone"), "run_on"), (in_queue("", Priority.HIGH), "priority")):
        with pytest.raises(services.Invalid) as found:
            create_sweep(**asked, queue=wrong)
        assert set(found.value.field_errors) == {field}


def test_new_study_judges_queues_and_clones_with_its_place(member: Client) -> None:
    there = {**MATRIX, "strategies": ["single", "dp"], "micro_batches": "2", "run_on": "worker:yard-a"}
    assert "Worker yard-a has 2 CPU devices" in preview(member, {**there, "devices": "4"})
    assert "This fleet has no worker “yard-x”" in preview(member, {**there, "run_on": "worker:yard-x"})
    assert member.post(NEW, {**there, "priority": "low"}).status_code == 302
    study = Study.objects.get()
    assert (study.run_on, study.priority) == ("worker:yard-a", Priority.LOW)
    assert set(study.runs.values_list("run_on", "priority")) == {("worker:yard-a", Priority.LOW)}
    clone = member.get(f"{NEW}?clone={study.pk}").content.decode()
    assert '<option value="worker:yard-a" selected>' in clone
    added = member.get(f"/studies/{study.pk}/add/").content.decode()
    assert 'type="hidden" name="run_on" value="worker:yard-a"' in added and "on worker yard-a as they do" in added


def test_runs_of_a_study_are_run_again_where_it_now_is(alice: Any) -> None:
    study = factory.study(alice, splits=({}, {"dp": 2}), recompute=False)
    Study.objects.filter(pk=study.pk).update(run_on="worker:yard-a", priority=Priority.LOW)
    study.refresh_from_db()
    again = reruns.run_again(study=study, user=alice, which=list)
    assert {(run.run_on, run.priority) for run in again} == {("worker:yard-a", Priority.LOW)}
    Study.objects.filter(pk=study.pk).update(run_on="worker:yard-b")
    study.refresh_from_db()
    states.cancel_queued(again[0])
    Worker.objects.filter(name="yard-a").delete()
    assert [run.run_on for run in reruns.run_again(study=study, user=alice, which=lambda _: again[:1])] == [
        "worker:yard-b"
    ]


def test_members_add_no_runs_at_high_priority_to_a_study_that_an_admin_put_first(alice: Any) -> None:
    study = factory.study(alice, splits=({}, {"dp": 2}), recompute=False)
    Study.objects.filter(pk=study.pk).update(priority=Priority.HIGH)
    study.refresh_from_db()
    added = joining.submit(owner=alice, study=study, request={"spec": spec()})
    again = reruns.run_again(study=study, user=alice, which=lambda runs: runs[:1])
    assert [run.priority for run in (added, *again)] == [Priority.NORMAL] * 2


def test_a_requeued_run_goes_where_its_study_went_meanwhile(admin: Any) -> None:
    queue = in_queue("worker:yard-a", Priority.HIGH)
    study = create_matrix(owner=admin, name="s", base=factory.BASE, axes=Axes(["single", "dp"]), queue=queue)
    first, second = study.runs.order_by("pk")[:2]
    Run.objects.filter(pk=first.pk).update(retries_left=1)
    attempt = factory.start(first)
    queueing.change(run=second, user=admin, run_on="worker:yard-b", priority=Priority.LOW)
    states.lose(attempt, "")
    first.refresh_from_db()
    assert (first.state, first.run_on, first.priority) == ("queued", "worker:yard-b", Priority.LOW)


def test_what_was_sent_elsewhere_while_the_queue_was_read_is_not_placed_where_it_was(alice: Any) -> None:
    run = factory.queued(alice, run_on="worker:yard-a")
    queueing.change(run=Run.objects.get(pk=run.pk), user=alice, run_on="worker:yard-b", priority=Priority.NORMAL)
    with pytest.raises(states.IllegalTransition):
        states.place(run, [{"worker": "yard-a", "devices": [0]}], Worker.objects.get(name="yard-a"))
    assert Run.objects.get(pk=run.pk).state == "queued"


def test_the_api_takes_shows_and_changes_place_and_priority(client: Client, alice: Any, admin: Any) -> None:
    mine, staff = bearer(alice, Scope.SUBMIT), bearer(admin, Scope.SUBMIT)
    made = post(client, {"spec": TINY, "run_on": f"type:{NEWER}", "priority": "low"}, mine).json()["data"]
    assert (made["run_on"], made["priority"]) == (f"type:{NEWER}", "low")

    def patch(body: Any, headers: Any) -> Any:
        address = f"/api/v1/runs/{made['id']}"
        return client.patch(address, json.dumps(body), content_type="application/json", headers=headers)

    assert patch({"priority": "high"}, mine).json()["error"]["fields"].keys() == {"priority"}
    changed = patch({"priority": "high", "name": "now"}, staff).json()["data"]
    assert (changed["priority"], changed["name"], changed["run_on"]) == ("high", "now", f"type:{NEWER}")
    assert patch({"run_on": ""}, mine).json()["data"]["run_on"] == ""
    assert patch({"run_on": "worker:x"}, mine).json()["error"]["fields"].keys() == {"run_on"}
    refused = post(client, {"spec": TINY, "run_on": "worker:x"}, mine)
    assert refused.status_code == 422 and set(refused.json()["error"]["fields"]) == {"run_on"}


def test_the_api_makes_studies_with_a_place_and_their_runs_take_no_other(client: Client, alice: Any) -> None:
    headers = bearer(alice, Scope.SUBMIT)
    body = {"name": "s", "runs": [{"label": "one", "spec": TINY}], "run_on": "worker:yard-b", "priority": "low"}
    made = client.post("/api/v1/studies", json.dumps(body), content_type="application/json", headers=headers)
    assert made.status_code == 201, made.content
    (run,) = made.json()["data"]["members"]
    assert (run["run_on"], run["priority"]) == ("worker:yard-b", "low")
    study = made.json()["data"]["id"]
    joins = post(client, {"spec": TINY, "study": study}, headers).json()["data"]
    assert (joins["run_on"], joins["priority"]) == ("worker:yard-b", "low")
    for field, other in (("run_on", "worker:yard-a"), ("run_on", ""), ("priority", "normal")):
        wrong = post(client, {"spec": TINY, "study": study, field: other}, headers)
        assert wrong.status_code == 422 and set(wrong.json()["error"]["fields"]) == {field}


def test_the_api_shows_and_changes_place_and_priority_of_a_study(client: Client, alice: Any, admin: Any) -> None:
    study = factory.study(alice, splits=({}, {"dp": 2}), recompute=False)
    added = joining.submit(owner=alice, study=study, request={"spec": spec()})
    address, mine = f"/api/v1/studies/{study.pk}", bearer(alice, Scope.SUBMIT)

    def patch(body: Any, headers: Any) -> Any:
        return client.patch(address, json.dumps(body), content_type="application/json", headers=headers)

    changed = patch({"run_on": "worker:yard-a"}, mine).json()["data"]
    assert (changed["run_on"], changed["priority"], changed["name"]) == ("worker:yard-a", "normal", study.name)
    assert patch({"priority": "high"}, mine).json()["error"]["fields"].keys() == {"priority"}
    assert patch({"run_on": "worker:x", "name": " "}, mine).json()["error"]["fields"].keys() == {"run_on", "name"}
    assert patch({"priority": "high"}, bearer(admin, Scope.SUBMIT)).status_code == 200
    added.refresh_from_db()
    assert (added.run_on, added.priority) == ("worker:yard-a", Priority.HIGH)
    (listed,) = client.get("/api/v1/studies", headers=mine).json()["data"]
    assert (listed["run_on"], listed["priority"]) == ("worker:yard-a", "high")


def test_a_retry_keeps_place_and_priority(alice: Any) -> None:
    run = factory.queued(alice, retries=1, run_on="worker:yard-a", priority=Priority.LOW)
    states.lose(factory.start(run), "")
    run.refresh_from_db()
    assert (run.state, run.run_on, run.priority) == ("queued", "worker:yard-a", Priority.LOW)
    assert asking.requests([run])[0].on == RunOn(worker="yard-a")
