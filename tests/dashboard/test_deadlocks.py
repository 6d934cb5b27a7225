"""A request that PostgreSQL ends for a deadlock is tried again: whoever sent it sees none of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client

from dashboard.api.models import Scope
from dashboard.deadlocks import SQLSTATE
from dashboard.runs.models import Run, State
from dashboard.studies.models import Study
from tests.dashboard import factory
from tests.dashboard.test_api import bearer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]
WRITES = re.compile(r'(UPDATE|INSERT INTO) "(runs|studies)_')


class Ended(Exception):
    """What the driver raises for it."""

    sqlstate = SQLSTATE


class Deadlock:
    """Ends the first transaction that writes to runs or studies."""

    def __init__(self) -> None:
        self.done = False

    def __call__(self, execute: Any, sql: str, *args: Any) -> Any:
        if not self.done and WRITES.match(sql):
            self.done = True
            raise OperationalError("deadlock detected") from Ended()
        return execute(sql, *args)


@pytest.fixture
def yard(alice: Any) -> dict[str, int]:
    """A study with a run that is done, one that was cancelled and a queued one."""
    factory.worker(devices=4)
    study = Study.objects.create(name="study", owner=alice, base=factory.BASE)
    done, cancelled, queued = (factory.queued(alice, study=study, position=at) for at in range(3))
    factory.start(done)
    factory.end(done, State.SUCCEEDED)
    Run.objects.filter(pk=cancelled.pk).update(state=State.CANCELLED)
    return {"study": study.pk, "done": done.pk, "cancelled": cancelled.pk, "queued": queued.pk}


@pytest.mark.parametrize(
    ("method", "address", "body"),
    [
        ("post", "/runs/{queued}/edit", {"name": "late", "tags": "", "notes": ""}),
        ("post", "/runs/{queued}/cancel", {}),
        ("post", "/studies/{study}/edit/", {"name": "late", "notes": "", "priority": "normal", "run_on": ""}),
        ("post", "/studies/{study}/again/", {"which": "cancelled"}),
        ("post", "/studies/{study}/baseline/", {"baseline": "{done}"}),
        ("patch", "/api/v1/runs/{queued}", {"name": "late", "priority": "low"}),
        ("post", "/api/v1/studies/{study}/cancel", None),
    ],
)
def test_it_is_tried_again(
    client: Client, alice: Any, yard: dict[str, int], method: str, address: str, body: dict[str, str] | None
) -> None:
    client.force_login(alice)
    about: dict[str, Any] = {"data": body and {name: value.format(**yard) for name, value in body.items()}}
    if address.startswith("/api/"):
        about |= {"content_type": "application/json", "headers": bearer(alice, Scope.SUBMIT)}
    deadlock = Deadlock()
    with connection.execute_wrapper(deadlock):
        answer = getattr(client, method)(address.format(**yard), **about)
    assert deadlock.done and answer.status_code in (200, 302), answer.content
    rows: list[Run | Study] = [Study.objects.get(), *Run.objects.order_by("pk")[:3]]
    said = [(row, text) for row in rows for text in row.events.exclude(kind="queued").values_list("text", flat=True)]
    assert said and len(said) == len(set(said)), "once, and not once more"
