"""A text, a host with its profiles, or an imported trace that is deleted while something is asked of it, as runs and
studies in test_vanishing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection, transaction
from django.db.models import Model
from django.test import Client

from dashboard.api.models import Scope
from dashboard.charts import timeline
from dashboard.fleet.models import Worker
from dashboard.runs.models import Corpus
from dashboard.traces.models import Trace
from tests.dashboard import factory
from tests.dashboard.run_analyst import read_next
from tests.dashboard.test_api import bearer
from tests.dashboard.test_traces import annotated, send
from tests.dashboard.test_vanishing import Vanishing

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]


@pytest.fixture
def text(alice: Any) -> Corpus:
    return Corpus.objects.create(owner=alice, name="text", sha256="0" * 64, size=3)


@pytest.fixture
def host(alice: Any) -> Worker:
    """A host with a profile."""
    made = factory.worker()
    factory.profiled(alice, made, factory.PROFILED)
    return made


@pytest.fixture
def imported(member: Client, settings: Any, tmp_path: Path) -> Trace:
    """An imported trace of two ranks."""
    settings.MEDIA_ROOT = tmp_path
    send(member, ("a.json", annotated(0)), ("b.json", annotated(1)))
    assert read_next()
    return Trace.objects.get()


@pytest.mark.parametrize(
    ("what", "method", "address"),
    [
        ("text", "post", "/runs/texts/{pk}/delete"),
        ("text", "delete", f"/api/v1/corpora/{'0' * 64}"),
        ("host", "post", "/fleet/{pk}/drain"),
        ("host", "post", "/fleet/{pk}/enable"),
        ("host", "get", "/partition/"),
        ("host", "get", "/partition/fleet/"),
        ("imported", "get", "/traces/{pk}/"),
        ("imported", "get", "/traces/{pk}/gantt.json"),
        ("imported", "get", "/traces/{pk}/operators/"),
        ("imported", "get", "/api/v1/traces/{pk}/analysis"),
    ],
)
def test_what_is_deleted_meanwhile_is_as_what_does_not_exist(
    what: str,
    method: str,
    address: str,
    request: pytest.FixtureRequest,
    admin: Any,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before whichever query of the request it is deleted."""
    row: Model = request.getfixturevalue(what)
    client.force_login(admin)
    headers = bearer(admin, Scope.SUBMIT) if address.startswith("/api/") else {}
    for at in range(60):
        cache.clear()
        timeline.forget()
        with transaction.atomic(), monkeypatch.context() as patched:
            vanishing = Vanishing(lambda: type(row)._default_manager.filter(pk=row.pk).delete(), at, patched)
            with connection.execute_wrapper(vanishing):
                answer = getattr(client, method)(address.format(pk=row.pk), headers=headers)
            assert answer.status_code < 500, (at, answer.content)
            transaction.set_rollback(True)
        if vanishing.left is not None:
            break
    assert 2 < at < 59
