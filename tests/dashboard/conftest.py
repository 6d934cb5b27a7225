"""Signed-in clients, workers and a controller for the tests of pages; every HTML response is checked for double
escaping.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import caches
from django.db import connections
from django.test import Client
from pytest_django.plugin import DjangoDbBlocker

from dashboard.charts import timeline
from dashboard.control.controller import Controller
from dashboard.fleet.models import Worker
from dashboard.ledger.models import Profile
from dashboard.runs import removal
from dashboard.runs.models import Attempt, Run, SeriesChunk, State
from tests.dashboard import factory
from tests.dashboard.fake_worker import Peer, points_frame


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> None:
    """Clears the in-memory caches of long steps and of answers. They are keyed by run number, which a yard never
    reuses, but the test database does.
    """
    timeline.forget()
    for cache in caches.all():
        cache.clear()


@pytest.fixture
def no_database(tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Makes the default database a file that cannot be opened or, with PostgreSQL, a server that is not there."""
    before = connections["default"]
    with django_db_blocker.unblock():
        away = connections.create_connection("default")
        key, name = ("NAME", "no folder/yard.sqlite3") if away.vendor == "sqlite" else ("HOST", "no folder")
        away.settings_dict = {**away.settings_dict, key: os.fspath(tmp_path / name)}
        connections["default"] = away
        try:
            yield
        finally:
            connections["default"] = before


_ESCAPED_TWICE = re.compile(r"&amp;(?:#x27|#39|amp|lt|gt|quot);")


@pytest.fixture(autouse=True)
def _no_page_is_escaped_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test if any page it opens contains HTML that was escaped twice."""
    asked = Client.request

    def request(client: Client, **environ: Any) -> Any:
        answer = asked(client, **environ)
        packed = answer.streaming or answer.has_header("Content-Encoding")
        if not packed and answer.get("Content-Type", "").startswith("text/html"):
            found = _ESCAPED_TWICE.search(text := answer.content.decode())
            assert not found, text[max(0, found.start() - 60) : found.end() + 60]
        return answer

    monkeypatch.setattr(Client, "request", request)


def _signed_in(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def reader(bob: Any) -> Client:
    """A client signed in as a viewer."""
    return _signed_in(bob)


@pytest.fixture
def member(alice: Any) -> Client:
    """A client signed in as a member."""
    return _signed_in(alice)


@pytest.fixture
def peer(redis_url: str) -> Peer:
    """A fake worker that speaks only the stream protocol."""
    return Peer(redis_url)


@pytest.fixture
def controller(redis_url: str) -> Controller:
    """A controller that tests advance turn by turn."""
    return Controller()


@pytest.fixture
def worker(db: None) -> Worker:
    """One host with two devices."""
    return factory.worker()


@pytest.fixture
def profile(worker: Worker, alice: Any) -> Profile:
    """A finished profile of `factory.PROFILED` on that worker."""
    return factory.profiled(alice, worker, factory.PROFILED)


@pytest.fixture
def deleted_run(transactional_db: None, redis_url: str, alice: Any) -> Attempt:
    """The attempt of a run of which only what it measured is left, committed."""
    attempt = factory.start(factory.queued(alice))
    factory.feed(attempt, 0, points_frame(0, 1200))
    Attempt.objects.filter(pk=attempt.pk).update(over=True)
    Run.objects.filter(pk=attempt.run_id).update(state=State.SUCCEEDED)
    removal.delete(runs=[attempt.run_id], user=alice)
    assert Attempt.every.exists() and SeriesChunk.objects.exists()
    return attempt


@pytest.fixture
def two_hosts(db: None) -> None:
    """Two hosts, with two and three devices."""
    factory.worker("yard-a", devices=2)
    factory.worker("yard-b", devices=3)


@pytest.fixture
def no_files(settings: Any, tmp_path: Path) -> None:
    """A yard to which nothing has been uploaded: its files go to `tmp_path`."""
    settings.MEDIA_ROOT = tmp_path


@pytest.fixture
def yard(member: Client, redis_url: str) -> Client:
    """A member's client, and a fleet of four devices."""
    factory.worker(devices=4)
    return member
