"""One yard has one broker: what a controller does at the broker of another yard."""

from __future__ import annotations

import html
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.test import Client

from dashboard.control import claim
from dashboard.control.claim import Claimed, yard_uid
from dashboard.control.controller import Controller
from dashboard.fleet.listening import refused_sentence
from dashboard.fleet.models import Worker, Yard
from dashboard.runs.waiting import queue
from dashboard.yard.processes import last_line
from tests.dashboard import factory
from tests.dashboard.fake_worker import Peer
from workers.contract import EVENTS, YARD, YARD_AT

pytestmark = pytest.mark.django_db


@pytest.fixture
def broker(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def handlers() -> Iterator[None]:
    """Puts back the signal handlers that the command sets."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_controller_leaves_the_broker_of_another_yard_alone(
    broker: redis.Redis, peer: Peer, controller: Controller, tmp_path: Path, client: Client, bob: Any, admin: Any
) -> None:
    client.force_login(bob)
    controller.turn()
    assert "is that of another yard" not in client.get("/fleet/").content.decode()
    first = yard_uid()
    assert broker.get(YARD) == first.encode()
    Yard.objects.all().delete()  # as in the database of another yard
    peer.beat()
    peer.ended(7)
    with pytest.raises(Claimed, match=f"that of another yard \\({first}; this one is {yard_uid()}\\)") as caught:
        Controller().turn()
    assert "TRAINYARD_REDIS_URL" in str(caught.value) and "--take-over" in str(caught.value)
    (tmp_path / "controller.log").write_text(said := f"CommandError: {caught.value}")
    assert last_line(tmp_path / "controller.log") == said, "./run prints all of it"
    shown = html.unescape(client.get("/fleet/").content.decode())
    assert "The controller is not at work: the broker is that of another yard." in shown and "--take-over" not in shown
    client.force_login(admin)
    assert f"The controller is not at work. {caught.value}" in html.unescape(client.get("/fleet/").content.decode())
    assert queue.waiting(factory.queued(admin)).sentence.endswith("not at work: the broker is that of another yard.")
    assert yard_uid() != first and broker.xlen(EVENTS) == 2 and not Worker.objects.exists() and not peer.orders()
    Yard.objects.update(uid=first)  # as restored from its backup
    Controller().turn()
    assert Worker.objects.exists() and peer.orders()
    assert "is that of another yard" not in client.get("/fleet/").content.decode()


def test_a_broker_that_was_emptied_is_claimed_again(
    broker: redis.Redis, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "CLAIM_EVERY_S", 0.0)
    controller.turn()
    broker.flushall()
    with pytest.raises(redis.ResponseError):  # the group is gone, too
        controller.turn()
    assert broker.get(YARD) == yard_uid().encode()


def test_a_controller_that_works_ends_when_another_yard_takes_its_broker_over(
    broker: redis.Redis, controller: Controller, monkeypatch: pytest.MonkeyPatch, handlers: None, capsys: Any
) -> None:
    monkeypatch.setattr(claim, "CLAIM_EVERY_S", 0.0)
    controller.turn()
    first = yard_uid()
    Yard.objects.update(uid="0b" * 8)
    before = threading.enumerate()
    with pytest.raises(CommandError, match=f"that of another yard \\({first}; this one is {'0b' * 8}\\)"):
        call_command("controller")
    for thread in (one for one in threading.enumerate() if one not in before):
        thread.join(30)
        assert not thread.is_alive(), "it would go on with a connection to the database"
    call_command("controller", "--take-over")
    assert f", which was that of yard {first}, is this yard's now." in capsys.readouterr().out
    assert not refused_sentence(True)
    controller.turn()
    Yard.objects.update(uid=first)
    with pytest.raises(Claimed):
        controller.turn()


def test_a_broker_that_is_away_cannot_be_taken_over(settings: Any) -> None:
    settings.REDIS_URL = "unix:///nowhere/redis.sock"
    with pytest.raises(CommandError, match="The broker does not answer: "):
        call_command("controller", "--take-over")


def test_a_copy_of_a_yard_leaves_its_broker_alone_while_the_other_is_at_work(
    broker: redis.Redis, controller: Controller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has the same id: each of them read half of what workers sent, and the other half was gone."""
    monkeypatch.setattr(claim, "CLAIM_EVERY_S", 0.0)
    controller.turn()
    controller.turn()
    Controller().turn()  # started again, with the same database
    with monkeypatch.context() as moved:  # into another network, where its host has another name
        moved.setattr(claim, "place_of_database", lambda: "elsewhere")
        controller.turn()
    with monkeypatch.context() as copied:
        copied.setattr(claim, "place_of_database", lambda: "elsewhere:/copy/trainyard.sqlite3")
        with pytest.raises(Claimed, match="is used by a copy of this yard") as caught:
            Controller().turn()
        assert "; this one's is elsewhere:/copy/trainyard.sqlite3." in str(caught.value)
        assert "used by a copy of this yard" in refused_sentence(True)
        said = "CommandError: " + refused_sentence(True).removeprefix("The controller is not at work. ")
        (tmp_path / "controller.log").write_text(said)
        assert last_line(tmp_path / "controller.log") == said, "./run prints all of it"
        assert 0 < broker.ttl(YARD_AT) <= claim.AT_WORK_S
        broker.delete(YARD_AT)  # as soon as the other one is gone for a while
        Controller().turn()
        assert not refused_sentence(True)
    with pytest.raises(Claimed, match="is used by a copy of this yard"):
        controller.turn()  # which was suspended for so long
