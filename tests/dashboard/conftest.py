"""People at their browsers, for every test of a page."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from dashboard.charts import timeline
from dashboard.control.controller import Controller
from dashboard.fleet.models import Worker
from dashboard.ledger.models import Profile
from tests.dashboard import factory
from tests.dashboard.peer import Peer


@pytest.fixture(autouse=True)
def _no_step_is_remembered() -> None:
    """A yard never gives a number twice; the tests' database does, and a long step is remembered by its run's."""
    timeline.forget()


_ESCAPED_TWICE = re.compile(r"&amp;(?:#x27|#39|amp|lt|gt|quot);")


@pytest.fixture(autouse=True)
def _no_page_is_escaped_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """No page that any test opens shows a reader the entity of a sign in place of the sign."""
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
    """A viewer's browser."""
    return _signed_in(bob)


@pytest.fixture
def member(alice: Any) -> Client:
    """A member's browser."""
    return _signed_in(alice)


@pytest.fixture
def peer(redis_url: str) -> Peer:
    """A worker as the controller meets it."""
    return Peer(redis_url)


@pytest.fixture
def controller(redis_url: str) -> Controller:
    """The one that the tests step by hand."""
    return Controller()


@pytest.fixture
def worker(db: None) -> Worker:
    """One host of two devices."""
    return factory.worker()


@pytest.fixture
def profile(worker: Worker, alice: Any) -> Profile:
    """Of `factory.PROFILED` on it, finished."""
    return factory.profiled(alice, worker, factory.PROFILED)


@pytest.fixture
def two_hosts(db: None) -> None:
    """Of two and three devices."""
    factory.worker("yard-a", devices=2)
    factory.worker("yard-b", devices=3)
