"""What every test of a study of text generation begins with."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.runs.models import Run
from dashboard.studies.models import Study
from tests.dashboard.text_studies import queued, saved


@pytest.fixture(autouse=True)
def _broker(redis_url: str) -> None:
    """Announcements need a broker."""


@pytest.fixture
def source(client: Client, alice: Any) -> Run:
    """A trained run with a checkpoint; alice is signed in."""
    return saved(client, alice)


@pytest.fixture
def study(client: Client, source: Run) -> Study:
    """A study of four splits of `source`, queued from the form."""
    return queued(client, source)
