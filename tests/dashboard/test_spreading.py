"""Which runs may be spread over several hosts: in the form, the API and the queue."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.fleet.models import Worker
from dashboard.runs import selectors, services, states, submission
from dashboard.runs.models import Attempt, Checkpoint, Run
from dashboard.runs.waiting import asking
from parallel_core import known_fields
from tests.dashboard import factory
from tests.dashboard.test_forms import filled
from workers.contract import ResumeFrom

pytestmark = pytest.mark.django_db


@pytest.fixture
def two_hosts(db: None) -> None:
    factory.worker("yard-a", devices=2)
    factory.worker("yard-b", devices=2)


def spec(dp: int = 4, **train: Any) -> dict[str, Any]:
    return {"parallel": {"dp": dp}, "train": train}


def test_what_the_fleet_has_in_all_is_enough(two_hosts: None) -> None:
    found = submission.assess(spec(4))
    assert not found.errors
    assert "the fleet has 4." in submission.assess(spec(8)).errors["parallel.dp"]


@pytest.mark.parametrize(
    ("train", "why"),
    [({"checkpoint_every": 5}, "its checkpoints lie on one"), ({"corpus": "tokens:web.bin"}, "its token file lies on")],
)
def test_what_lies_on_one_host_keeps_the_run_there(two_hosts: None, train: dict[str, Any], why: str) -> None:
    assert why in submission.assess(spec(4, **train)).errors["parallel.dp"]


def test_workers_that_share_a_folder_let_it_go_over_them(two_hosts: None) -> None:
    Worker.objects.filter(name="yard-a").update(shared_checkpoints=True)
    assert submission.assess(spec(4, checkpoint_every=5)).errors  # nobody shares with it
    Worker.objects.update(shared_checkpoints=True)
    factory.worker("laptop", devices=2)  # it shares no folder, and does not keep the others from it
    found = submission.assess(spec(4, checkpoint_every=5))
    assert not found.errors and set(found.hosts) == {"yard-a", "yard-b"}
    assert "the fleet has 4." in submission.assess(spec(6, checkpoint_every=5, global_batch=12)).errors["parallel.dp"]
    assert not submission.assess(spec(6, global_batch=12)).errors


def test_a_token_file_that_two_workers_have_is_read_on_both(two_hosts: None, alice: Any) -> None:
    file = {"name": "web.bin", "tokens": 10_000, "vocab": 64}
    Worker.objects.update(token_files=[file])
    factory.worker("other", devices=8)
    Worker.objects.filter(name="other").update(token_files=[{**file, "tokens": 77}])  # another file of the same name
    found = submission.assess(spec(4, corpus="tokens:web.bin"))
    assert not found.errors and set(found.hosts) == {"yard-a", "yard-b"}
    Worker.objects.exclude(name="other").update(token_files=[{**file, "values": "a"}])
    Worker.objects.filter(name="other").update(token_files=[{**file, "values": "b"}])  # the same size, other tokens
    assert set(submission.assess(spec(4, corpus="tokens:web.bin")).hosts) == {"yard-a", "yard-b"}
    run = services.submit(owner=alice, spec=found.spec.model_dump(mode="json") if found.spec else {})
    (request,) = asking.requests([run])
    assert request.needs == ("yard-a", "yard-b") and not request.alone
    Worker.objects.exclude(name="other").update(draining=True)
    assert (
        selectors.waiting(run).sentence == "Waits for yard-a and yard-b, one of which must be there for its token file."
    )


def test_an_image_file_that_two_workers_have_is_read_on_both(two_hosts: None) -> None:
    file = {"name": "pets", "images": 100, "height": 8, "width": 8, "channels": 1, "classes": 10}
    asked = {**spec(4, corpus="images:pets"), "model": {"kind": "mlp"}}
    Worker.objects.filter(name="yard-a").update(image_files=[file])
    assert "its image file lies on one" in submission.assess(asked).errors["parallel.dp"]
    Worker.objects.filter(name="yard-b").update(image_files=[{**file, "images": 99}])
    assert "its image file lies on one" in submission.assess(asked).errors["parallel.dp"]
    tokens = [{"name": "pets", "tokens": 9, "vocab": 4}]
    Worker.objects.update(image_files=[file], token_files=tokens, fields=known_fields.later())
    found = submission.assess(asked)
    assert not found.errors and set(found.hosts) == {"yard-a", "yard-b"}


def test_a_token_file_that_no_list_names_may_be_where_a_list_is_cut(two_hosts: None, alice: Any) -> None:
    files = [{"name": f"part-{i}", "tokens": 10_000, "vocab": 64} for i in range(7)]
    Worker.objects.update(token_files=files)
    said = submission.assess(spec(4, corpus="tokens:web")).errors["train.corpus"]
    assert said.endswith("they have part-0, part-1, part-2, part-3, part-4, part-5 (6 of 7).")
    Worker.objects.filter(name="yard-b").update(more_token_files=9)
    found = submission.assess(spec(2, corpus="tokens:web"))
    assert not found.errors
    run = services.submit(owner=alice, spec=found.spec.model_dump(mode="json") if found.spec else {})
    (request,) = asking.requests([run])
    assert request.needs == ("yard-b",)


@pytest.mark.parametrize(
    ("hosts", "dp", "said"),
    [
        (3, 4, "cannot be spread evenly over 3 hosts; choose 2 or 4, or as few as it takes."),
        (2, 1, "choose as few as it takes."),
        (4, 4, "4 hosts with 1 CPU device each are needed; the fleet has 2."),
        (2, 8, "2 hosts with 4 CPU devices each are needed; the fleet has 0."),
    ],
)
def test_what_cannot_be_spread_is_refused_with_what_can(two_hosts: None, hosts: int, dp: int, said: str) -> None:
    errors = submission.assess(spec(dp), host_count=hosts).errors
    assert said in errors["hosts"] and list(errors) == ["hosts"]  # only once, at the field where it was requested


def test_the_form_spreads_a_run(member: Client, two_hosts: None) -> None:
    assert member.post("/runs/new/", filled(parallel__dp="2") | {"hosts": "2"}).status_code == 302
    assert Run.objects.get().host_count == 2
    refused = member.post("/runs/new/", filled(parallel__dp="2") | {"hosts": "3"})
    assert "evenly over 3 hosts" in str(refused.context["form"].errors["hosts"])
    assert refused.context["form"]["hosts"].value() == "3"
    said = member.post("/runs/new/check", filled(parallel__dp="4")).content.decode()
    assert "at most 2 on one host; its ranks would be on yard-a and yard-b." in said


def test_a_clone_is_spread_as_its_run_was(member: Client, two_hosts: None, alice: Any) -> None:
    run = services.submit(owner=alice, spec=spec(4), host_count=2)
    page = member.get(f"/runs/{run.pk}/clone")
    assert page.context["form"]["hosts"].value() == "2"
    narrow = services.submit(owner=alice, spec=spec(2), host_count=2)
    Worker.objects.filter(name="yard-b").delete()
    said = member.get(f"/runs/{narrow.pk}/clone").context["panel"].errors
    assert said == ["2 hosts with 1 CPU device each are needed; the fleet has 1."]  # shown as soon as the form opens


@pytest.mark.parametrize(("hosts", "words"), [(1, "on one"), (5, "evenly over 5")])
def test_a_clone_keeps_a_number_of_hosts_that_only_the_api_takes(
    member: Client, two_hosts: None, alice: Any, hosts: int, words: str
) -> None:
    run = services.submit(owner=alice, spec=spec(4), host_count=hosts)
    page = member.get(f"/runs/{run.pk}/clone").content.decode()
    assert f'<option value="{hosts}" selected>{words}</option>' in page
    sent = member.post("/runs/new/", filled(parallel__dp="4") | {"hosts": str(hosts)})
    assert f'{hosts}" selected' in sent.content.decode() and "must be one of" not in sent.content.decode()


def test_a_run_is_resumed_over_as_many_hosts(member: Client, two_hosts: None, alice: Any) -> None:
    Worker.objects.update(shared_checkpoints=True)
    run = services.submit(owner=alice, spec=spec(2, checkpoint_every=5), host_count=2)
    nodes = [{"worker": f"yard-{name}", "devices": [0], "first_rank": i} for i, name in enumerate("ab")]
    attempt = states.place(run, [{**node, "address": "x", "shares": True} for node in nodes], Worker.objects.all()[0])
    Checkpoint.objects.create(run=run, attempt=attempt, worker="yard-a", step=10, bytes=1, seconds=0.1)
    page = member.get(f"/runs/{run.pk}/resume")
    assert page.context["form"]["hosts"].value() == "2"
    assert "its ranks would be on yard-a and yard-b" in page.context["panel"].devices
    head = member.get(f"/runs/{run.pk}/").content.decode()
    assert "2 devices on yard-a (device 0) and yard-b (device 0)" in head


def test_a_run_resumed_where_there_are_too_few_devices_is_refused(two_hosts: None, alice: Any) -> None:
    """Its checkpoint is on a host of two devices; another has four, and reads it only from a shared folder."""
    factory.worker("yard-c", devices=4)
    run = services.submit(owner=alice, spec=spec(2, steps=20))
    node = {"worker": "yard-a", "devices": [0, 1], "first_rank": 0, "address": "x"}
    attempt = states.place(run, [node], Worker.objects.get(name="yard-a"))
    Checkpoint.objects.create(run=run, attempt=attempt, worker="yard-a", step=10, bytes=1, seconds=0.1)
    begins: ResumeFrom = {"run": run.pk, "step": 10}
    wide = spec(4, steps=20)
    refused = submission.assess(wide, begins)
    assert refused.errors["parallel.dp"].endswith("the largest worker that has its files (yard-a) has 2.")
    assert not submission.assess(spec(2, steps=20), begins).errors
    Worker.objects.update(shared_checkpoints=True)
    assert "the checkpoint it begins from lies on one" in submission.assess(wide, begins, 2).errors["hosts"]
    attempt.devices = [{**node, "shares": True}]
    attempt.save()
    assert not submission.assess(wide, begins).errors and not submission.assess(wide, begins, 2).errors
    queued = services.submit(owner=alice, spec=wide, resume_from=begins)
    attempt.devices = [node]
    attempt.save()
    why = "because the checkpoint it begins from lies on one; the largest worker has 2."
    assert selectors.waiting(queued).sentence == f"Needs 4 CPU devices on one host, {why}"


def test_the_queue_says_which_hosts_are_waited_for(two_hosts: None, alice: Any) -> None:
    factory.start(factory.queued(alice, {"dp": 2}))
    run = services.submit(owner=alice, spec=spec(4))
    waits = selectors.waiting(run).sentence
    assert waits == "Waits for 4 CPU devices on 2 hosts: yard-a and yard-b have 2 free."
    factory.worker("yard-c", devices=2)
    other = factory.start(factory.queued(alice))
    Attempt.objects.filter(pk=other.pk).update(devices=[{**other.devices[0], "worker": "yard-c"}])
    waits = selectors.waiting(run).sentence
    assert waits == "Waits for 4 CPU devices on 2 hosts: yard-a and yard-b have 2 free; yard-c has 1."


def test_free_devices_that_cannot_be_added_are_not_told(apart: None, alice: Any) -> None:
    """Those of a host that takes no part in runs over several, or of another version: with them it would seem that
    there are enough."""
    factory.start(factory.queued(alice, {"dp": 2}))
    run = services.submit(owner=alice, spec=spec(4))
    factory.worker("yard-c", devices=2)
    Worker.objects.filter(name="yard-c").update(version="of another")
    waits = selectors.waiting(run).sentence
    assert waits == "Waits for 4 CPU devices on 2 hosts: yard-a and yard-b have 2 free."


def test_the_queue_says_which_host_is_missing(two_hosts: None, alice: Any) -> None:
    run = services.submit(owner=alice, spec=spec(4), host_count=2)
    Worker.objects.filter(name="yard-b").update(leaving=True)
    waits = selectors.waiting(run).sentence
    assert waits == ("Needs 4 CPU devices spread evenly over 2 hosts; the only worker for it has 2. yard-b is leaving.")


@pytest.fixture
def apart(two_hosts: None) -> None:
    """Three hosts of two devices, of which one, cpu, takes no part in runs over several hosts."""
    factory.worker("cpu", devices=2)
    Worker.objects.filter(name="cpu").update(across_hosts=False)


APART = "cpu takes no part in runs over several hosts."


def test_a_worker_that_others_cannot_reach_is_left_out_with_the_reason(apart: None, alice: Any) -> None:
    assert set(submission.assess(spec(4)).hosts) == {"yard-a", "yard-b"}
    said = submission.assess(spec(6, global_batch=12)).errors["parallel.dp"]
    assert f"need 6 CPU devices; a run over several hosts can have 4. {APART}" in said
    assert submission.assess(spec(3, global_batch=12), host_count=3).errors == {
        "hosts": f"3 hosts with 1 CPU device each are needed; the fleet has 2. {APART}"
    }
    run = services.submit(owner=alice, spec=spec(6, global_batch=12))
    assert selectors.waiting(run).sentence == f"Needs 6 CPU devices; a run over several hosts can have 4. {APART}"
    spread = services.submit(owner=alice, spec=spec(3, global_batch=12), host_count=3)
    said = selectors.waiting(spread).sentence
    assert said.startswith(f"Needs 3 CPU devices spread evenly over 3 hosts; the workers have 2, 2. {APART}")


def test_the_form_says_which_worker_is_for_runs_on_one_host(member: Client, apart: None) -> None:
    said = member.post("/runs/new/check", filled(parallel__dp="4")).context["panel"].devices
    assert said.startswith("4 CPU devices asked for; the fleet has 4 for one run, at most 2 on one host;")
    assert said.endswith(f". {APART}")
    Worker.objects.filter(name="cpu").update(draining=True)
    Worker.objects.filter(name="yard-a").update(draining=True)
    assert will_it_run(member, parallel__dp="4") == "Too few such devices take runs now: yard-a is draining."
    Worker.objects.exclude(name="cpu").delete()
    alone = member.post("/runs/new/check", filled(parallel__dp="2")).context["panel"].devices
    assert alone == "2 CPU devices asked for; the fleet has 2, at most 2 on one host."


def test_the_api_takes_how_many_hosts_and_says_which(member: Client, two_hosts: None) -> None:
    asked = {"spec": spec(4), "hosts": 2}
    made = member.post("/api/v1/runs", asked, content_type="application/json")
    assert made.status_code == 201, made.content
    found = made.json()["data"]
    assert (found["hosts"], found["placed"]) == (2, [])
    nodes = [{"worker": f"yard-{name}", "devices": [0, 1], "first_rank": 2 * i} for i, name in enumerate("ab")]
    run = Run.objects.get()
    states.place(run, [{**node, "address": "x"} for node in nodes], Worker.objects.get(name="yard-a"))
    assert member.get(f"/api/v1/runs/{run.pk}").json()["data"]["placed"] == nodes
    wrong = member.post("/api/v1/runs", {**asked, "hosts": 3}, content_type="application/json")
    assert wrong.status_code == 422 and "evenly over 3 hosts" in wrong.content.decode()


def test_one_host_that_was_asked_for_must_have_all_the_devices(two_hosts: None, alice: Any) -> None:
    said = submission.assess(spec(4), host_count=1).errors["parallel.dp"]
    assert said.endswith("on one host, because one was asked for; the largest worker has 2.")
    assert not submission.assess(spec(2), host_count=1).errors
    run = services.submit(owner=alice, spec=spec(4), host_count=1)
    assert "on one host, because one was asked for" in selectors.waiting(run).sentence


def will_it_run(client: Client, **asked: str) -> str:
    return str(client.post("/runs/new/check", filled(**asked)).context["panel"].waits)


def test_while_no_worker_takes_runs_the_panel_says_whom_a_run_would_wait_for(
    two_hosts: None, client: Client, alice: Any
) -> None:
    client.force_login(alice)
    assert will_it_run(client, parallel__dp="4") == ""
    Worker.objects.filter(name="yard-a").update(draining=True)
    assert will_it_run(client, parallel__dp="2") == "", "the other worker can take it"
    assert will_it_run(client, parallel__dp="4") == ("Too few such devices take runs now: yard-a is draining.")
    Worker.objects.filter(name="yard-b").update(heartbeat_at=timezone.now() - timedelta(hours=1))
    said = "Too few such devices take runs now: yard-a is draining and yard-b is silent."
    assert will_it_run(client) == said
    page = client.post("/runs/new/check", filled()).content.decode()
    assert "It would wait.</strong> " + said in page
    Worker.objects.filter(name="yard-a").update(draining=False, clashed_at=timezone.now())
    said = "Too few such devices take runs now: yard-a is a name that two workers use and yard-b is silent."
    assert will_it_run(client) == said
    Worker.objects.all().delete()
    assert will_it_run(client) == "No worker has reported yet."
