"""Workers of a version that lacks a field of the spec: what they are sent, and which runs wait for a newer one."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from pydantic import ConfigDict, create_model

from dashboard.control.dispatch import start_message
from dashboard.control.heartbeats import answers
from dashboard.control.placing import place_queued
from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import hosts
from dashboard.ledger.forms import models
from dashboard.ledger.models import Profile
from dashboard.ledger.selectors import profile_key
from dashboard.ledger.services import ask_profile
from dashboard.placement.assignments import plan
from dashboard.placement.finding import Wait
from dashboard.runs import services, submission
from dashboard.runs.models import Run
from dashboard.runs.waiting import asking, queue
from parallel_core import known_fields
from parallel_core.profile.request import measured_with
from parallel_core.spec import RunSpec, TrainSpec
from tests.dashboard import factory
from tests.dashboard.test_form_files import PETS
from workers import run_commands
from workers.run_commands import Refused, read_command

pytestmark = pytest.mark.django_db
NEW = "train.deterministic"
"""The field that these tests take for new."""


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker that announces no fields, as before there was one to announce; what it runs lacks NEW alone."""
    monkeypatch.setattr(known_fields, "EARLIEST", (known_fields.EARLIEST | set(known_fields.later())) - {NEW})
    Worker.objects.filter(pk=factory.worker("yard-a").pk).update(version="0.0.1")
    return Worker.objects.get()


@pytest.fixture
def older_code(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {name: (one.annotation, one) for name, one in TrainSpec.model_fields.items() if f"train.{name}" != NEW}
    train: Any = create_model("TrainSpec", __config__=ConfigDict(extra="forbid", frozen=True), **own)  # type: ignore[call-overload]
    monkeypatch.setattr(run_commands, "RunSpec", create_model("RunSpec", __base__=RunSpec, train=(train, train())))


def placed() -> Run:
    (attempt,) = place_queued(["yard-a"], ["yard-a"])
    return attempt.run


def test_an_older_worker_takes_a_run_that_leaves_the_new_field_alone(old: Worker, older_code: None, alice: Any) -> None:
    run = factory.queued(alice)
    message = start_message(placed().attempts.get())
    assert read_command(message, "yard-a", old.devices).attempt == message["attempt"]
    with pytest.raises(Refused, match=f"{NEW}: There is no such field"):
        read_command({**message, "spec": run.spec}, "yard-a", old.devices)


def test_a_worker_is_sent_the_fields_that_it_announces(old: Worker, alice: Any) -> None:
    run = factory.queued(alice)
    Worker.objects.update(fields=known_fields.later())
    assert start_message(placed().attempts.get())["spec"] == run.spec


def test_of_several_workers_each_must_know_a_field(old: Worker, alice: Any) -> None:
    factory.worker("yard-b")
    Worker.objects.filter(name="yard-b").update(fields=[NEW], version="0.0.1")
    run = factory.queued(alice, {"dp": 4})
    (attempt,) = place_queued(["yard-a", "yard-b"], ["yard-a", "yard-b"])
    assert attempt.run_id == run.pk and "deterministic" not in start_message(attempt)["spec"]["train"]


def test_a_run_that_uses_the_new_field_waits_for_a_newer_worker(old: Worker, alice: Any) -> None:
    run = factory.queued(alice, train={"deterministic": True})
    said = f"Needs a newer worker: yard-a runs version 0.0.1, which does not announce that it knows {NEW}."
    assert plan(asking.requests([run]), hosts()).waits == {run.pk: (Wait.UNABLE, ("yard-a",))}
    assert queue.waiting(run).sentence == said == submission.assess(run.spec).waits
    assert not list(place_queued(["yard-a"], ["yard-a"]))
    Worker.objects.update(fields=[NEW])
    assert submission.assess(run.spec).waits == "" and placed() == run


def test_a_run_over_hosts_of_two_versions_waits_for_one(old: Worker, alice: Any) -> None:
    factory.worker("yard-b")
    Worker.objects.filter(name="yard-b").update(version="0.0.2")
    run = factory.queued(alice, {"dp": 4})
    said = (
        "Needs workers of one version for its 4 ranks: yard-a runs 0.0.1 and yard-b runs 0.0.2. Update the older ones."
    )
    assert queue.waiting(run).sentence == said == submission.assess(run.spec).waits
    Worker.objects.update(version="0.0.2")
    assert submission.assess(run.spec).waits == "" and queue.waiting(run).sentence == "Starts now."


def test_a_run_on_an_image_file_waits_for_a_worker_that_knows_them(alice: Any) -> None:
    """Also one whose model an older worker knows; it cannot list the file."""
    older = factory.worker("yard-a")
    Worker.objects.filter(pk=older.pk).update(fields=[NEW], version="0.0.1")
    run = services.submit(owner=alice, spec={"model": {"kind": "mlp"}, "train": {"corpus": "images:pets"}})
    assert queue.waiting(run).sentence.endswith("does not announce that it knows train.corpus=images.")
    assert not list(place_queued(["yard-a"], ["yard-a"]))
    Worker.objects.update(fields=known_fields.later())
    said = "Waits for a worker that has the image file pets: none has. Put that into a worker's data folder, or "
    assert queue.waiting(run).sentence.startswith(said)
    Worker.objects.update(image_files=[PETS])
    assert placed() == run


def test_a_profile_of_a_run_on_a_file_names_no_file(alice: Any) -> None:
    older = factory.worker("yard-a")
    grey, coloured = ({"kind": "mlp"}, {"kind": "mlp", "channels": 3})
    for model in (grey, coloured):
        spec = RunSpec.model_validate({"model": model, "train": {"corpus": "images:pets"}})
        ask_profile(worker=older, spec=spec, user=alice)
    first, second = (asked["spec"] for _, asked in answers(older, {}))
    assert first["train"]["corpus"] == "digits", "which every version knows"
    assert RunSpec.model_validate(second).train.corpus == "images:profile"


def test_a_profile_is_requested_without_the_new_field(old: Worker, alice: Any) -> None:
    profile = ask_profile(worker=old, spec=RunSpec(), user=alice)
    ((_, asked),) = answers(old, {})
    assert "deterministic" not in asked["spec"]["train"] and "deterministic" in profile.spec["train"]
    old.fields = [NEW]
    ((_, asked),) = answers(old, {})
    assert asked["spec"]["train"]["deterministic"] is False


def test_a_profile_is_requested_without_new_fields_that_change_nothing_of_it(
    old: Worker, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learning rate of the run that the model is of; what is kept still says it, for runs that are begun there."""
    train = {"lr_schedule": "cosine", "lr_warmup_steps": 2, "deterministic": True}
    rates = {"train.lr_schedule", "train.lr_warmup_steps", "train.lr_final"}
    monkeypatch.setattr(known_fields, "EARLIEST", known_fields.EARLIEST - rates)
    spec = RunSpec.model_validate({"train": train, "inject": [{"kind": "straggler"}]})
    profile = ask_profile(worker=old, spec=spec, user=alice)
    ((_, asked),) = answers(old, {})
    assert not [name for name in asked["spec"]["train"] if name.startswith("lr_")] and asked["spec"]["inject"] == []
    assert asked["spec"]["train"]["deterministic"] and profile.spec["train"]["lr_schedule"] == "cosine"
    sent = RunSpec.model_validate(asked["spec"])
    assert profile_key(sent) == profile.key and measured_with(spec, sent) and sent.model == spec.model


def test_a_worker_is_not_asked_for_a_profile_of_a_model_that_it_does_not_know(member: Client, alice: Any) -> None:
    """It would answer that the spec breaks a rule."""
    older = factory.worker("yard-a")
    Worker.objects.filter(pk=older.pk).update(version="0.0.1", fields=[])
    model = {"kind": "mlp", "channels": 3}
    services.submit(owner=alice, spec={"model": model, "train": {"corpus": "images:pets"}})
    title = next(title for title, spec in models().items() if spec.model.channels == 3)
    asked = {"worker": older.pk, "model": title}
    page = member.post("/partition/profile", asked, follow=True).content.decode()
    said = "yard-a runs version 0.0.1, which does not announce that it knows model.channels"
    assert said in page and "update it, or choose another worker or model." in page and not Profile.objects.exists()
    Worker.objects.filter(pk=older.pk).update(fields=known_fields.later())
    member.post("/partition/profile", asked)
    assert Profile.objects.count() == 1
