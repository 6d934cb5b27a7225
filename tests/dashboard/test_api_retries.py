"""The header Idempotency-Key: a POST that is sent again, because its answer was lost, makes nothing twice."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError
from django.test import Client
from django.utils import timezone

from dashboard.api.models import IdempotencyKey, Scope
from dashboard.runs import cancelling, linking, services
from dashboard.runs.models import Run
from dashboard.studies.models import Study
from dashboard.traces.models import Trace
from tests.dashboard import factory
from tests.dashboard.test_api import TINY, bearer
from tests.dashboard.test_resume import frame

NAME = "Idempotency-Key"


@pytest.fixture(autouse=True)
def broker(redis_url: str) -> None:
    """Announcements need a broker."""


@pytest.fixture
def send(client: Client, alice: Any) -> Any:
    """A function that POSTs JSON as alice with a key and returns the response."""
    headers = bearer(alice, Scope.SUBMIT)

    def ask(path: str, body: Any, key: str) -> Any:
        client.raise_request_exception = False
        text = json.dumps(body)
        return client.post(f"/api/v1/{path}", text, content_type="application/json", headers=headers | {NAME: key})

    return ask


@pytest.mark.django_db
def test_a_run_whose_answer_was_lost_is_not_queued_twice(send: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"spec": TINY, "name": "once"}

    def away(run: Run) -> Any:
        raise OperationalError("the database went away")

    with monkeypatch.context() as patched:
        patched.setattr("dashboard.api.runs.detail", away)
        lost = send("runs", body, "k1")
    assert lost.status_code == 503 and NAME in lost.json()["error"]["message"]
    run = Run.objects.get()  # queued all the same
    again = send("runs", body, "k1")
    assert (again.status_code, again.json()["data"]["id"]) == (200, run.pk)
    assert send("runs", body, "k2").status_code == 201
    assert Run.objects.count() == 2


@pytest.mark.django_db
def test_a_key_is_for_one_request_of_one_user(client: Client, send: Any, admin: Any) -> None:
    assert send("runs", {"spec": TINY}, "k").status_code == 201
    other = send("runs", {"spec": TINY, "name": "another"}, "k")
    assert other.status_code == 422 and list(other.json()["error"]["fields"]) == [NAME]
    same_body_elsewhere = send("links", {"first": "a", "second": "b"}, "k")
    assert same_body_elsewhere.status_code == 422
    headers = bearer(admin, Scope.SUBMIT) | {NAME: "k"}
    theirs = client.post("/api/v1/runs", {"spec": TINY}, content_type="application/json", headers=headers)
    assert theirs.status_code == 201
    Run.objects.filter(owner__username="alice").delete()
    gone = send("runs", {"spec": TINY}, "k")
    assert gone.status_code == 422 and "deleted" in gone.json()["error"]["fields"][NAME]


@pytest.mark.django_db
@pytest.mark.parametrize("key", ["k" * 121, "two words", "\x7f", "é", ""])
def test_what_is_no_key_is_refused_by_the_name_of_the_header(send: Any, key: str) -> None:
    answer = send("runs", {"spec": TINY}, key)
    assert answer.status_code == 422 and list(answer.json()["error"]["fields"]) == [NAME]
    assert not Run.objects.exists()


@pytest.mark.django_db
def test_a_refused_request_does_not_use_its_key(send: Any) -> None:
    assert send("runs", {"spec": {"model": {"heads": 3}}}, "k").status_code == 422
    assert send("runs", {"spec": TINY}, "k").status_code == 201


@pytest.mark.django_db
def test_keys_are_forgotten_after_a_day(send: Any) -> None:
    assert send("runs", {"spec": TINY}, "k").status_code == 201
    IdempotencyKey.objects.update(at=timezone.now() - timedelta(hours=24, seconds=1))
    assert send("runs", {"spec": TINY, "name": "next day"}, "k").status_code == 201
    send("runs", {"spec": TINY}, "old")
    IdempotencyKey.objects.filter(key="old").update(at=timezone.now() - timedelta(hours=25))
    send("runs", {"spec": TINY}, "new")
    assert set(IdempotencyKey.objects.values_list("key", flat=True)) == {"k", "new"}


@pytest.mark.django_db
def test_every_post_that_makes_something_takes_a_key(
    send: Any, client: Client, alice: Any, two_hosts: None, settings: Any, tmp_path: Path
) -> None:
    settings.MEDIA_ROOT = tmp_path
    source = factory.finished(alice)
    factory.feed(source.attempts.get(), 0, frame(20, [20]))
    member = {"label": "a", "spec": TINY}
    for number, (path, body) in enumerate(
        {
            f"runs/{source.pk}/generate": {"prompt": "a", "new": 4},
            "links": {"first": "yard-a", "second": "yard-b"},
            "studies": {"name": "s", "runs": [member]},
        }.items()
    ):
        made, again = (send(path, body, f"k{number}") for _ in range(2))
        assert (made.status_code, again.status_code) == (201, 200), made.content
        assert made.json()["data"]["id"] == again.json()["data"]["id"]
    assert (Run.objects.count(), Study.objects.count()) == (4, 1)

    def upload(text: bytes) -> Any:
        files = {"files": SimpleUploadedFile("rank0.json", text)}
        return client.post("/api/v1/traces", files, headers=bearer(alice, Scope.SUBMIT) | {NAME: "file"})

    assert [upload(text).status_code for text in (b"{}", b"{}", b"{ }")] == [201, 200, 422]
    trace = Trace.objects.get()
    assert [file.stored for file in trace.files.all()] and len(list((tmp_path / "traces").iterdir())) == 1


@pytest.mark.django_db
def test_links_under_way_answer_a_key_also_when_they_have_ended(send: Any, alice: Any, two_hosts: None) -> None:
    run = linking.submit(owner=alice, first="yard-a", second="yard-b")
    asked = {"first": "yard-a", "second": "yard-b"}
    assert send("links", asked, "k").json()["data"]["id"] == run.pk
    cancelling.request_cancel(run=run, user=alice)
    assert send("links", asked, "k").json()["data"]["id"] == run.pk
    assert send("links", asked, "k2").json()["data"]["id"] != run.pk


def beside(monkeypatch: pytest.MonkeyPatch, ask: Any) -> tuple[Any, Any]:
    """The results of a call, and of another one that came, and was done, after the first was checked and before it was
    written."""
    prepare = services.prepare
    inner: list[Any] = []

    def checked(**given: Any) -> Any:
        found = prepare(**given)
        if not inner:
            inner.append(None)
            inner[0] = ask()
        return found

    monkeypatch.setattr(services, "prepare", checked)
    return ask(), inner[0]


@pytest.mark.django_db
def test_two_requests_at_once_make_one_run(send: Any, two_hosts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    later, first = beside(monkeypatch, lambda: send("runs", {"spec": TINY}, "k"))
    assert (first.status_code, later.status_code) == (201, 200)
    assert {first.json()["data"]["id"], later.json()["data"]["id"]} == {Run.objects.get().pk}


@pytest.mark.django_db
def test_links_asked_for_twice_at_once_are_timed_once(
    alice: Any, two_hosts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = beside(monkeypatch, lambda: linking.submit(owner=alice, first="yard-a", second="yard-b"))
    assert {run.pk for run in runs} == {Run.objects.get().pk}
