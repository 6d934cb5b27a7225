"""The controller's stamp: what pages say while it is away, what it fails at, and the health check."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.test import Client
from django.utils import timezone
from psycopg.errors import DiskFull

from dashboard.control import controller as loop
from dashboard.control.controller import Controller
from dashboard.control.guard import Guard
from dashboard.fleet import listening
from dashboard.fleet.models import ControllerState, Worker
from dashboard.fleet.selectors import FleetSnapshot
from dashboard.runs import cancelling
from dashboard.runs.models import Run, State
from dashboard.runs.submission import assess
from dashboard.runs.waiting.queue import everyone_waiting
from tests.dashboard import factory
from tests.dashboard.database_file import ROOT, env_of
from tests.dashboard.fake_worker import Peer, spec
from tests.dashboard.plain import plain
from tests.dashboard.test_control import started, state_of, submit, until

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def broker(redis_url: str) -> None:
    """Announcements need a broker."""


@pytest.fixture
def away(worker: Worker) -> Worker:
    """A host that was heard until the controller went away, 40 min ago."""
    listening.stamp([])
    since = timezone.now() - timedelta(minutes=40)
    ControllerState.objects.update(listened_at=since)
    Worker.objects.update(heartbeat_at=since)
    return worker


def fleet(client: Client) -> str:
    return str(client.get("/fleet/").content.decode())


def test_a_controller_that_is_away_is_said_once_and_of_no_host(away: Worker, member: Client) -> None:
    said = fleet(member)
    assert "The controller has not been heard for 40 min: nothing is placed or recorded until it is back" in said
    assert "Silent since" not in said and ">silent<" not in said and "given up as lost" not in said
    assert "when last heard: load" in said and ">in service<" not in said
    listening.stamp([])
    said = fleet(member)
    assert "controller has not been heard" not in said
    assert ">silent<" in said, "now it listens, and the host is not there"


def test_a_host_that_was_silent_before_stays_silent(away: Worker, member: Client) -> None:
    Worker.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=50))
    assert ">silent<" in fleet(member)


def test_the_queue_waits_for_the_controller(away: Worker, alice: Any) -> None:
    run = factory.queued(alice)
    assert everyone_waiting()[run.pk].sentence == "Waits for the controller, which has not been heard for 40 min."
    listening.stamp([])
    Worker.objects.update(heartbeat_at=timezone.now())
    assert everyone_waiting()[run.pk].sentence == "Starts now."


def test_a_full_disk_of_the_database_is_said_and_not_the_controller_blamed(
    away: Worker, member: Client, alice: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = factory.queued(alice)
    file = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "yard.sqlite3"}
    monkeypatch.setattr(listening, "settings", SimpleNamespace(DATABASES={"default": file}))
    monkeypatch.setattr(listening.shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    assert "The disk of the database is full: nothing is placed or recorded until" in fleet(member)
    assert "controller has not been heard" not in fleet(member)
    assert everyone_waiting()[run.pk].sentence == "Waits until the disk of the database, which is full, has room."
    listening.stamp([])
    assert "The disk of the database" not in fleet(member), "as long as it takes what is written"


def test_the_page_of_a_run_under_way_says_that_nobody_hears_from_it(away: Worker, member: Client, alice: Any) -> None:
    run = factory.queued(alice)
    factory.start(run)
    ControllerState.objects.update(listened_at=timezone.now() - timedelta(minutes=40))
    said = "The controller has not been heard for 40 min: nothing is placed or recorded until it is back"
    assert said in plain(member.get(f"/runs/{run.pk}/").content.decode())
    factory.end(run, State.SUCCEEDED)
    assert said not in plain(member.get(f"/runs/{run.pk}/").content.decode())


def test_a_run_that_is_written_meanwhile_is_told_so(away: Worker, member: Client) -> None:
    assert [one.name for one in FleetSnapshot.now().reporting] == [away.name]
    assert assess(spec(dp=2)).waits.startswith("The controller has not been heard for 40 min")
    listening.stamp([])
    assert "controller" not in assess(spec(dp=2)).waits


def test_a_yard_whose_controller_never_worked_judges_by_now(worker: Worker, member: Client) -> None:
    assert "controller has not" not in fleet(member) and ">in service<" in fleet(member)


def test_the_health_check_is_the_stamp(controller: Controller) -> None:
    with pytest.raises(CommandError):
        call_command("controller", "--check")
    controller.turn()
    call_command("controller", "--check")
    ControllerState.objects.update(listened_at=timezone.now() - timedelta(seconds=listening.AWAY_S + 5))
    with pytest.raises(CommandError):
        call_command("controller", "--check")


def test_without_a_database_the_health_check_says_so_in_a_sentence(tmp_path: Path) -> None:
    """As before the first start of a yard, or while PostgreSQL is away."""
    env = env_of(tmp_path, f"unix://{tmp_path}/nobody")
    command = [sys.executable, "manage.py", "controller", "--check"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("CommandError: The database cannot be asked: no such table")


def test_the_health_check_loads_no_controller() -> None:
    """It runs again and again beside the controller, on the same cores."""
    code = (
        "import django; django.setup(); import sys; from django.core.management import load_command_class; "
        "load_command_class('dashboard.control', 'controller'); print('dashboard.control.controller' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.strip() == "False"


def test_a_backlog_is_no_listening(controller: Controller, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.control.wire.READ_COUNT", 1)
    for _ in range(2):
        peer.beat()
    controller.turn()
    assert not ControllerState.objects.exists()


def broken(*_: Any) -> Any:
    raise KeyError("of a stored\nrow")


@pytest.mark.parametrize("sweep", ["sweep_cancels", "sweep_traces", "place_queued", "sweep_unsettled"])
def test_a_sweep_that_fails_stops_no_other(
    peer: Peer, controller: Controller, alice: Any, sweep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancels, leases and placing go on, except for the broken part itself."""
    run = submit(alice)
    attempt = started(peer, controller, run)
    monkeypatch.setattr(loop.placing if sweep == "place_queued" else loop.sweeps, sweep, broken)
    second = submit(alice)
    cancelling.request_cancel(run=run, user=alice)
    controller._last.clear()
    for _ in range(3):
        peer.beat(attempt.pk)
        controller.turn()
    if sweep != "sweep_cancels":
        assert state_of(run) == State.CANCELLING
    if sweep != "place_queued":
        assert [task["run"] for task in peer.tasks()] == [run.pk, second.pk]
    assert [failure["error"] for failure in controller._guard.failing] == ["KeyError: 'of a stored\\nrow'"]


@pytest.mark.parametrize("how", ["one command", "several"])
def test_a_broker_that_takes_nothing_is_said_and_not_the_controller_blamed(
    peer: Peer,
    controller: Controller,
    alice: Any,
    member: Client,
    admin: Any,
    client: Client,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one whose disk is full."""
    monkeypatch.setattr(loop, "STAMP_EVERY_S", 0.0)
    controller.turn()
    run = submit(alice)
    peer.redis.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(redis.ResponseError) as refused:
            if how == "one command":
                controller._claim.forget()
                controller.turn()
            else:
                with peer.redis.pipeline() as pipe:
                    pipe.xack("a", "b", "1-1")
                    pipe.execute()
        controller._recover(refused.value)
    finally:
        peer.redis.config_set("min-replicas-to-write", 0)
    ControllerState.objects.update(listened_at=timezone.now() - timedelta(seconds=40))
    client.force_login(admin)
    why = "failed the controller for 40 s (NOREPLICAS Not enough good replicas to write)"
    for page in (fleet(member), fleet(client)):
        assert f"Redis has {why}: nothing is placed or recorded until it is back; training goes on." in page
        assert "The controller" not in page
    assert everyone_waiting()[run.pk].sentence == f"Waits for Redis, which has {why}."
    controller.turn()
    assert "Redis has" not in fleet(member) and "Redis" not in everyone_waiting()[run.pk].sentence


def test_after_an_outage_the_backlog_is_said_and_not_the_broker_blamed(
    peer: Peer, controller: Controller, alice: Any, member: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "STAMP_EVERY_S", 0.0)
    controller.turn()
    run = submit(alice)
    controller._recover(redis.ConnectionError("Connection refused"))
    ControllerState.objects.update(listened_at=timezone.now() - timedelta(minutes=40))
    assert "Redis has failed the controller for 40 min" in fleet(member)
    monkeypatch.setattr("dashboard.control.wire.READ_COUNT", 1)
    peer.beat()
    controller.turn()
    said = fleet(member)
    assert "Redis has failed" not in said
    assert "The controller is reading what workers sent in the last 40 min, when nobody listened: nothing is" in said
    waits = "Waits until the controller has read what workers sent in the last 40 min."
    assert everyone_waiting()[run.pk].sentence == waits
    later = timezone.now() + timedelta(seconds=listening.KNOWN_S)
    with monkeypatch.context() as patch:
        patch.setattr(timezone, "now", lambda: later)
        assert "The controller has not been heard for 40 min" in fleet(member), "it was killed meanwhile"
    controller.turn()
    assert "The controller is reading" not in fleet(member)


def test_a_full_disk_of_postgresql_is_said_and_not_the_controller_blamed(
    away: Worker, controller: Controller, member: Client, alice: Any, monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    run = factory.queued(alice)
    elsewhere = {"ENGINE": "django.db.backends.postgresql", "NAME": "yard"}
    monkeypatch.setattr(listening, "settings", SimpleNamespace(DATABASES={"default": elsewhere}, REDIS_URL=redis_url))
    monkeypatch.setattr(loop, "connection", SimpleNamespace(close=lambda: None))  # on a PostgreSQL the test has it, too
    controller._recover(OperationalError("server closed the connection unexpectedly"))
    assert "The controller has not been heard for 40 min" in fleet(member)
    error = OperationalError("could not extend file: No space left on device")
    error.__cause__ = DiskFull()
    controller._recover(error)
    assert "The disk of the database is full: nothing is placed or recorded until" in fleet(member)
    assert "controller has not been heard" not in fleet(member)
    assert everyone_waiting()[run.pk].sentence == "Waits until the disk of the database, which is full, has room."


def test_what_fails_is_noted_as_text_that_every_database_takes() -> None:
    """An error may quote what could not be stored; a stamp that is refused would make the controller look away."""
    guard = Guard()

    def quotes() -> None:
        raise ValueError("cannot store\n'\x00' and '\ud800'")

    guard.run("place queued runs", quotes)
    (failure,) = guard.failing
    assert failure["error"] == "ValueError: cannot store '\N{REPLACEMENT CHARACTER}' and '\\ud800'"
    listening.stamp(guard.failing)
    assert ControllerState.objects.get().failing == [failure]


def test_an_administrator_sees_what_the_controller_fails_at(
    peer: Peer, controller: Controller, alice: Any, admin: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "STAMP_EVERY_S", 0.0)
    monkeypatch.setattr(loop, "SWEEP_EVERY_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(loop.placing, "place_queued", broken)
        for _ in range(3):
            controller.turn()
    client.force_login(admin)
    assert "The controller cannot place queued runs, 2 times since" in fleet(client)
    client.force_login(alice)
    assert "The controller cannot" not in fleet(client)
    for _ in range(2):
        controller.turn()
    client.force_login(admin)
    assert "The controller cannot" not in fleet(client)


def test_a_start_message_that_cannot_be_made_keeps_no_other_from_its_worker(
    peer: Peer, controller: Controller, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = loop.send_start
    first, second = submit(alice), submit(alice)
    monkeypatch.setattr(loop, "send_start", lambda one: broken() if one.run_id == first.pk else sent(one))
    peer.beat()
    until(controller, lambda: bool(peer.tasks()))
    assert [task["run"] for task in peer.tasks()] == [second.pk]
    assert Run.objects.filter(state=State.STARTING).count() == 2
