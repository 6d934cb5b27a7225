"""People at their browsers, for every test of a page."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client


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
