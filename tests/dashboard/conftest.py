"""People at their browsers, for every test of a page."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.control.controller import Controller
from tests.dashboard.peer import Peer


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
