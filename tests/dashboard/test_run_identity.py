"""What tells a run from another of the same number: sent with starts and deletions, and kept with the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dashboard.control.dispatch import start_message
from dashboard.control.heartbeats import answers
from dashboard.fleet.models import Leftover, Worker
from dashboard.runs import removal, services, states
from dashboard.runs.models import Run
from dashboard.uids import new_uid
from tests.dashboard import factory
from tests.dashboard.fake_worker import spec
from workers import checkpoints, run_folders
from workers.run_commands import read_command
from workers.settings import Settings

pytestmark = pytest.mark.django_db


def test_every_run_has_a_uid_of_its_own(alice: Any) -> None:
    requests: list[services.RunRequest] = [{"spec": spec(), "name": f"run {i}"} for i in range(3)]
    services.write(services.prepare(owner=alice, requests=requests))
    uids = list(Run.objects.values_list("uid", flat=True))
    assert len(uids) == len(set(uids)) == 3
    assert all(len(uid) == len(new_uid()) and int(uid, 16) >= 0 for uid in uids)


def test_a_start_says_which_run_is_meant_and_which_one_it_begins_from(alice: Any) -> None:
    source = factory.queued(alice)
    first = factory.start(source)
    states.finish(first, "interrupted", "interrupted", "Stopped.")
    second = factory.start(source)
    message = start_message(second)
    assert message["identity"] == {"uid": source.uid, "attempts": [first.pk, second.pk]}
    assert "resume_identity" not in message
    Run.objects.filter(pk=factory.queued(alice).pk).update(resume_run=source, resume_step=3)
    later = factory.start(Run.objects.get(resume_run=source))
    assert start_message(later)["resume_identity"] == message["identity"] != start_message(later)["identity"]


def test_a_worker_takes_the_message_with_it_and_without(alice: Any) -> None:
    attempt = factory.start(factory.queued(alice, {"dp": 2}))
    message = start_message(attempt)
    here = attempt.worker
    assert here and message["identity"]
    assert read_command(message, here.name, here.devices).message.get("identity") == message["identity"]
    Run.objects.update(uid="")
    message = start_message(type(attempt).objects.get(pk=attempt.pk))
    assert "identity" not in message, "the number alone means a run that is older than uids"
    assert read_command({**message, "of_a_later_version": {}}, here.name, here.devices).attempt == attempt.pk


@pytest.mark.parametrize("old", [False, True])
def test_the_order_to_delete_means_this_run_alone(old: bool, alice: Any, tmp_path: Path) -> None:
    run = factory.queued(alice)
    attempt = factory.start(run)
    if old:
        Run.objects.update(uid="")
    states.finish(attempt, "succeeded")
    identity = start_message(type(attempt).objects.get()).get("identity")
    assert (identity is None) == old
    settings = Settings("yard-a", "unix://x", tmp_path, tmp_path)
    mine = run_folders.of_run(settings.checkpoints, run.pk, identity)
    other = run_folders.of_run(settings.checkpoints, run.pk, {"uid": new_uid(), "attempts": []})
    for folder in (mine, other):
        (folder / "step-00000010").mkdir(parents=True)
    removal.delete(runs=[run.pk], user=alice)
    leftover = Leftover.objects.get()
    assert (leftover.uid, leftover.attempts) == ("" if old else run.uid, [attempt.pk])
    ((_, order),) = answers(Worker.objects.get(), {})
    assert order.get("identity") == identity
    checkpoints.drop(settings, order["attempt"], order.get("identity"))
    assert other.exists() and not mine.exists()
