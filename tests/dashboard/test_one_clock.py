"""Web and controller on hosts whose clocks differ: the controller and the hosts are judged by that of the database."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from unittest.mock import MagicMock

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from dashboard import one_clock
from dashboard.control.controller import Controller
from dashboard.fleet import listening, refusals
from dashboard.fleet.models import Worker
from dashboard.fleet.selectors import age_of, reporting
from tests.dashboard.fake_worker import Peer

pytestmark = pytest.mark.django_db


class Database:
    """A PostgreSQL whose clock is so many seconds ahead of this host's; counts how often it is asked."""

    vendor = "postgresql"

    def __init__(self, ahead: float) -> None:
        self.ahead, self.asked = ahead, 0

    def cursor(self) -> Database:
        return self

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, _: str) -> None:
        self.asked += 1

    def fetchone(self) -> tuple[float]:
        return (time.time() + self.ahead,)


@pytest.fixture
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known yet of the database's clock."""
    monkeypatch.setattr(one_clock, "_known", {"until": 0.0, "ahead": 0.0})


@pytest.mark.parametrize("off", [15.0, -900.0])
def test_a_controller_on_a_host_whose_clock_differs_is_heard_and_so_are_the_workers(
    peer: Peer, controller: Controller, member: Client, monkeypatch: pytest.MonkeyPatch, unknown: None, off: float
) -> None:
    """`The controller has not been heard for 15 s: nothing is placed`, said every page where its clock was behind."""
    usual = timezone.now
    with monkeypatch.context() as its:  # the database is on the host of the web
        its.setattr(timezone, "now", lambda: usual() - timedelta(seconds=off))
        its.setattr(one_clock, "connection", Database(off))
        its.setattr(one_clock, "_known", {"until": 0.0, "ahead": 0.0})
        peer.beat()
        controller.turn()
    assert listening.away_for() is None and listening.is_at_work()
    assert [worker.name for worker in reporting()] == ["yard-a"]
    age = age_of(Worker.objects.get())
    assert age is not None and age < listening.AWAY_S
    assert "has not been heard" not in member.get("/fleet/").content.decode()


def test_fleet_tells_by_the_clock_of_the_web_when_a_host_was_heard(
    member: Client, monkeypatch: pytest.MonkeyPatch, unknown: None
) -> None:
    """Where that was 15 minutes ahead of the database's, each host was `heard 15 min ago`."""
    monkeypatch.setattr(one_clock, "connection", Database(-900.0))
    Worker.objects.create(name="yard-a", heartbeat_at=timezone.now() - timedelta(seconds=900))
    page = member.get("/fleet/").content.decode()
    assert re.search(r"heard <time [^>]*>just now</time>", page)


def test_a_refusal_matters_until_its_worker_is_heard_by_whatever_clock(
    monkeypatch: pytest.MonkeyPatch, unknown: None
) -> None:
    monkeypatch.setattr(one_clock, "connection", Database(900.0))
    client = MagicMock()
    client.__enter__.return_value.acl_log.return_value = [
        {
            "reason": "auth",
            "username": name,
            "client-info": {"addr": "10.0.0.2:1"},
            "age-seconds": 60.0,
            "object": "AUTH",
        }
        for name in ("since", "before")
    ]
    monkeypatch.setattr(refusals, "connect", lambda *_: client)
    for name, ago in (("since", 30), ("before", 90)):
        Worker.objects.create(name=name, heartbeat_at=timezone.now() + timedelta(seconds=900 - ago))
    assert [one.user for one in refusals.lately()] == ["before"]


def test_the_database_is_not_asked_for_its_clock_each_time(monkeypatch: pytest.MonkeyPatch, unknown: None) -> None:
    asked = Database(3600.0)
    monkeypatch.setattr(one_clock, "connection", asked)
    for _ in range(3):
        assert one_clock.now() - timezone.now() > timedelta(minutes=59)
    assert asked.asked == 1


def test_a_clock_that_may_be_the_same_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, unknown: None) -> None:
    monkeypatch.setattr(one_clock, "connection", Database(0.0))
    assert one_clock._ahead() == 0.0


def test_the_real_database_tells_its_clock(unknown: None) -> None:
    if connection.vendor == "sqlite":
        one_clock.now()
        assert one_clock._known["until"] == 0.0, "its clock is this host's"
    else:
        assert abs(one_clock._ahead()) < 5.0
