"""A run or a study that is deleted while something is asked of it is then as one that does not exist: no error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import QuerySet
from django.test import Client

from dashboard.api.models import Scope
from dashboard.runs import removal, selectors
from dashboard.runs.models import Checkpoint, MemoryRecord, Run, State
from dashboard.runs.page import charts
from dashboard.studies.models import Study
from tests.dashboard import factory
from tests.dashboard.test_api import bearer

pytestmark = pytest.mark.django_db
LATE = {"priority": "low", "name": "late"}


class Vanishing:
    """Deletes something just before the query number `at` of a connection, unless its row is locked by then; deadlocks
    aside, that is what another request can do."""

    def __init__(self, delete: Callable[[], object], at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = at
        self._delete, self._base = delete, len(connection.savepoint_ids)
        self._locking, self._locked = False, False
        lock = QuerySet.select_for_update

        def noted(*args: Any, **kwargs: Any) -> Any:
            self._locking = True
            return lock(*args, **kwargs)

        monkeypatch.setattr(QuerySet, "select_for_update", noted)

    def __call__(self, execute: Any, sql: str, *args: Any) -> Any:
        if self.left is None or sql.startswith(("SAVEPOINT", "RELEASE", "ROLLBACK")):
            return execute(sql, *args)
        self._locked = self._locked and len(connection.savepoint_ids) > self._base
        if not self.left and not self._locked:
            self.left = None
            self._delete()
        elif self.left:
            self.left -= 1
        self._locked, self._locking = self._locked or self._locking, False
        return execute(sql, *args)


@pytest.fixture
def yard(alice: Any, redis_url: str) -> dict[str, int]:
    """The ids of a study with a run that is done, a cancelled and a queued one, and of a queued run of its own."""
    factory.worker(devices=4)
    study = Study.objects.create(name="study", owner=alice, base=factory.BASE)
    done = factory.finished(alice, study=study)
    Checkpoint.objects.create(run=done, attempt=done.attempts.get(), worker="yard-a", step=5, bytes=1, seconds=1.0)
    cancelled, queued = (factory.queued(alice, study=study, position=at) for at in (1, 2))
    Run.objects.filter(pk=cancelled.pk).update(state=State.CANCELLED)
    single = factory.queued(alice)
    running = factory.queued(alice)
    factory.start(running)
    made = {"done": done, "cancelled": cancelled, "queued": queued, "single": single, "running": running}
    return {"study": study.pk, **{name: run.pk for name, run in made.items()}}


def delete(what: str, yard: dict[str, int]) -> None:
    """Deletes the run or the study, whatever its state: it may have ended just now."""
    removal.forget(list(Run.objects.filter(**({"study": yard[what]} if what == "study" else {"pk": yard[what]}))))
    if what == "study":
        Study.objects.filter(pk=yard[what]).delete()


@pytest.mark.parametrize(
    ("what", "method", "address", "body"),
    [
        ("single", "post", "/runs/{single}/cancel", {}),
        ("running", "post", "/runs/{running}/cancel", {}),
        pytest.param("running", "post", "/runs/{running}/trace-next", {}, marks=pytest.mark.full),
        ("single", "post", "/runs/{single}/edit", {"name": "late"}),
        ("queued", "post", "/runs/{queued}/queue", {"priority": "low"}),
        pytest.param("study", "post", "/runs/{queued}/queue", {"priority": "low"}, marks=pytest.mark.full),
        pytest.param("single", "post", "/runs/{single}/first", {}, marks=pytest.mark.full),
        ("single", "post", "/runs/cancel", {"runs": ["{queued}", "{single}"]}),
        pytest.param("done", "post", "/runs/free-space", {"runs": ["{done}"]}, marks=pytest.mark.full),
        pytest.param("done", "post", "/runs/delete", {"runs": ["{done}"]}, marks=pytest.mark.full),
        ("done", "get", "/runs/delete?runs={done}", {}),
        ("done", "get", "/runs/{done}/generate", {}),
        pytest.param(
            "done", "post", "/runs/{done}/generate", {"prompt": "a", "step": "5", "new": "3"}, marks=pytest.mark.full
        ),
        ("study", "get", "/studies/{study}/delete/", {}),
        pytest.param("study", "post", "/studies/{study}/delete/", {}, marks=pytest.mark.full),
        pytest.param("study", "post", "/studies/{study}/edit/", LATE, marks=pytest.mark.full),
        pytest.param("study", "post", "/studies/{study}/again/", {"which": "cancelled"}, marks=pytest.mark.full),
        pytest.param("cancelled", "post", "/studies/{study}/again/", {"which": "cancelled"}, marks=pytest.mark.full),
        ("study", "post", "/studies/{study}/baseline/", {"baseline": "{done}"}),
        ("done", "post", "/studies/{study}/baseline/", {"baseline": "{done}"}),
        ("single", "post", "/api/v1/runs/{single}/cancel", None),
        pytest.param("single", "patch", "/api/v1/runs/{single}", LATE, marks=pytest.mark.full),
        ("done", "patch", "/api/v1/runs/{done}", {"name": "late"}),
        pytest.param("done", "delete", "/api/v1/runs/{done}", None, marks=pytest.mark.full),
        pytest.param("done", "post", "/api/v1/runs/{done}/free-space", {"profiles": True}, marks=pytest.mark.full),
        ("study", "post", "/api/v1/studies/{study}/cancel", None),
        ("queued", "post", "/api/v1/studies/{study}/cancel", None),
        pytest.param("study", "patch", "/api/v1/studies/{study}", LATE, marks=pytest.mark.full),
        pytest.param(
            "study", "post", "/api/v1/runs", {"spec": factory.spec_of({}), "study": "{study}"}, marks=pytest.mark.full
        ),
    ],
)
def test_what_is_deleted_meanwhile_is_as_what_does_not_exist(
    what: str,
    method: str,
    address: str,
    body: Any,
    yard: dict[str, int],
    admin: Any,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before whichever query of the request it is deleted."""
    client.force_login(admin)
    path, secret = address.format(**yard), bearer(admin, Scope.SUBMIT)
    about: dict[str, Any] = {"data": _named(body, yard)}
    if path.startswith("/api/"):
        about |= {"content_type": "application/json", "headers": secret}
    for at in range(60):
        with transaction.atomic(), monkeypatch.context() as patched:
            vanishing = Vanishing(lambda: delete(what, yard), at, patched)
            with connection.execute_wrapper(vanishing):
                answer = getattr(client, method)(path, **about)
            assert answer.status_code < 500, (at, answer.content)
            connection.check_constraints()  # what refers to it must not have been written
            transaction.set_rollback(True)
        if vanishing.left is not None:
            break
    assert 2 < at < 59


def test_a_memory_curve_that_the_controller_deletes_meanwhile_is_not_drawn(
    alice: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a deleted run has measured goes later than its row."""
    run = factory.finished(alice)
    whole, memory = charts.timeline(run, 10), selectors.memory
    assert whole and "memory of rank" in whole.subtitle

    def read(of: Run, curves: bool = False) -> dict[int, MemoryRecord]:
        found = memory(of, curves)
        MemoryRecord.objects.all().delete()
        return found

    monkeypatch.setattr(selectors, "memory", read)
    left = charts.timeline(run, 10)
    assert left and "memory of rank" not in left.subtitle


def _named(body: Any, yard: dict[str, int]) -> Any:
    """The body with the ids in place of the names."""
    if isinstance(body, dict):
        return {name: _named(value, yard) for name, value in body.items()}
    if isinstance(body, list):
        return [_named(value, yard) for value in body]
    return yard[body[1:-1]] if isinstance(body, str) and body.startswith("{") else body
