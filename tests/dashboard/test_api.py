"""The JSON API: what it returns, who may call it, and the single shape of its errors."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from dashboard.api.models import ApiToken, Scope
from dashboard.fleet.models import Worker
from dashboard.runs import services
from dashboard.runs.models import Corpus, Run
from dashboard.runs.selectors import SORTS
from tests.dashboard import factory
from tests.dashboard.streamed_body import received

pytestmark = pytest.mark.django_db
TINY = {"model": {"layers": 1, "hidden": 16, "heads": 2, "seq": 16}, "train": {"steps": 6, "global_batch": 4}}


def bearer(user: Any, scope: Scope, days: int = 1) -> dict[str, str]:
    expires = timezone.now() + timedelta(days=days)
    return {"Authorization": f"Bearer {ApiToken.make(user=user, name='t', scope=scope, expires_at=expires)[1]}"}


def post(client: Client, body: Any, headers: dict[str, str]) -> Any:
    return client.post("/api/v1/runs", json.dumps(body), content_type="application/json", headers=headers)


@pytest.fixture
def two_cpus(db: None) -> Worker:
    devices = [
        {"index": i, "kind": "cpu", "name": "core", "memory_total": 2**30, "memory_used": 0, "load": 0.0}
        for i in range(2)
    ]
    return Worker.objects.create(name="yard-a", devices=devices, heartbeat_at=timezone.now())


def test_submit_get_list_and_cancel_with_a_token(client: Client, alice: Any) -> None:
    headers = bearer(alice, Scope.SUBMIT)
    made = post(client, {"spec": TINY, "name": "first", "tags": ["a"]}, headers)
    assert made.status_code == 201
    run = made.json()["data"]
    assert (run["name"], run["state"], run["owner"], run["strategy"]) == ("first", "queued", "alice", "Single")
    got = client.get(f"/api/v1/runs/{run['id']}", headers=headers).json()["data"]
    assert got["spec"]["model"]["hidden"] == 16
    listed = client.get("/api/v1/runs?q=first&tag=a&state=queued", headers=headers).json()
    assert [row["id"] for row in listed["data"]] == [run["id"]]
    assert listed["meta"] == {"count": 1, "page": 1, "per_page": 50}
    ended = client.post(f"/api/v1/runs/{run['id']}/cancel", headers=headers).json()["data"]
    assert ended["state"] == "cancelled"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"spec": {"model": {"hidden": 130, "heads": 4}}}, "model.heads"),
        ({"spec": {"model": {"heads": 4}, "parallel": {"tp": 3}}}, "parallel.tp"),
        ({"spec": {"model": {"layers": -1}}}, "model.layers"),
        ({"spec": {"train": {"lr": "nan"}}}, "train.lr"),
        ({"spec": {"train": {"steps": 10_000_001}}}, "train.steps"),
        ({"spec": {"parallel": {"micro_batches": 4097}}}, "parallel.micro_batches"),
        ({"spec": {"parallel": {"micro_batches": 3}}}, "parallel.micro_batches"),
        ({"spec": {"train": {"corpus": "blob:" + "0" * 64}}}, "train.corpus"),
        ({"spec": {"train": {"corpus": "/etc/passwd"}}}, "train.corpus"),
        ({"spec": {"module": "os"}}, "module"),
        ({"spec": {}, "command": "rm"}, "command"),
        ({"spec": {}, "name": "x" * 121}, "name"),
        ({"spec": {}, "retries": 11}, "retries"),
        ({"spec": {"parallel": {"dp": 4}}}, "parallel.dp"),
        ({"spec": {"train": {"device": "cuda"}}}, "train.device"),
        ({"spec": {"model": {"layers": 100, "hidden": 1024, "heads": 4}}}, "model.hidden"),
    ],
)
def test_bad_input_names_the_field_and_queues_nothing(
    client: Client, alice: Any, two_cpus: Worker, body: Any, field: str
) -> None:
    answer = post(client, body, bearer(alice, Scope.SUBMIT))
    assert answer.status_code == 422, answer.content
    error = answer.json()["error"]
    assert error["code"] == "invalid"
    assert field in error["fields"], error
    assert not Run.objects.exists()


def test_memory_prediction_can_be_overruled(client: Client, alice: Any, two_cpus: Worker) -> None:
    big = {"model": {"layers": 100, "hidden": 1024, "heads": 4}}
    assert post(client, {"spec": big, "anyway": True}, bearer(alice, Scope.SUBMIT)).status_code == 201


def test_strangers_and_bad_tokens_get_401(client: Client, alice: Any) -> None:
    for headers in ({}, {"Authorization": "Bearer nonsense"}, bearer(alice, Scope.READ, days=-1)):
        answer = client.get("/api/v1/runs", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "not_signed_in")


def test_a_bad_token_does_not_fall_back_to_the_cookie(client: Client, alice: Any) -> None:
    client.force_login(alice)
    assert client.get("/api/v1/runs", headers={"Authorization": "Bearer nonsense"}).status_code == 401


@pytest.mark.parametrize(("who", "scope"), [("alice", Scope.READ), ("alice", Scope.WORKER), ("bob", Scope.SUBMIT)])
def test_submitting_needs_the_scope_and_the_role(client: Client, alice: Any, bob: Any, who: str, scope: Scope) -> None:
    user = {"alice": alice, "bob": bob}[who]
    answer = post(client, {"spec": TINY}, bearer(user, scope))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_allowed")
    assert not Run.objects.exists()


def test_members_cancel_their_own_and_admins_all(
    client: Client, alice: Any, admin: Any, django_user_model: Any
) -> None:
    from dashboard.accounts.roles import make_member

    carol = make_member(django_user_model.objects.create_user("carol"))
    run = services.submit(owner=alice, spec=TINY)
    address = f"/api/v1/runs/{run.pk}/cancel"
    assert client.post(address, headers=bearer(carol, Scope.SUBMIT)).status_code == 403
    assert client.post(address, headers=bearer(admin, Scope.SUBMIT)).status_code == 200


def test_a_session_needs_the_csrf_token(alice: Any) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(alice)
    assert post(browser, {"spec": TINY}, {}).status_code == 403
    page = browser.get("/accounts/password/")
    token = str(page.context["csrf_token"])
    assert post(browser, {"spec": TINY}, {"X-CSRFToken": token}).status_code == 201


def test_runs_are_sorted_by_every_column_that_the_page_sorts_by(client: Client, alice: Any, bob: Any) -> None:
    text = services.submit(owner=alice, spec=TINY)
    image = services.submit(owner=alice, spec={**TINY, "model": {"kind": "mlp"}})
    client.force_login(bob)
    for column in SORTS:
        found = client.get(f"/api/v1/runs?sort=-{column}").json()["data"]
        assert {run["id"] for run in found} == {image.pk, text.pk}
    for sort, order in {"model": [text.pk, image.pk], "-model": [image.pk, text.pk]}.items():
        assert [run["id"] for run in client.get(f"/api/v1/runs?sort={sort}").json()["data"]] == order


def test_a_session_reads(client: Client, bob: Any) -> None:
    client.force_login(bob)
    assert client.get("/api/v1/runs").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("get", "/api/v1/runs/999999", 404, "not_found"),
        ("get", "/api/v1/nothing", 404, "not_found"),
        ("delete", "/api/v1/runs", 405, "method_not_allowed"),
        ("get", "/api/v1/runs?page=0", 422, "invalid"),
        ("get", "/api/v1/runs?sort=secret", 422, "invalid"),
        ("get", "/api/v1/runs/99999999999999999999", 422, "invalid"),
    ],
)
def test_every_error_has_one_shape(client: Client, alice: Any, method: str, path: str, status: int, code: str) -> None:
    answer = getattr(client, method)(path, headers=bearer(alice, Scope.SUBMIT))
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"code", "message", "fields"}
    assert answer.json()["error"]["code"] == code


def test_a_body_that_is_no_json_is_a_400(client: Client, alice: Any) -> None:
    answer = client.post("/api/v1/runs", "{", content_type="application/json", headers=bearer(alice, Scope.SUBMIT))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")


def test_an_exception_shows_no_trace(client: Client, alice: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(*args: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("dashboard.api.runs.record", boom)
    services.submit(owner=alice, spec=TINY)
    answer = client.get("/api/v1/runs", headers=bearer(alice, Scope.READ))
    assert answer.status_code == 500
    assert b"secret" not in answer.content and b"Traceback" not in answer.content


def test_series_spans_and_log_of_a_queued_run_are_empty_not_wrong(client: Client, alice: Any) -> None:
    run = services.submit(owner=alice, spec=TINY)
    headers = bearer(alice, Scope.READ)
    series, spans, log = (
        client.get(f"/api/v1/runs/{run.pk}/{part}", headers=headers).json()["data"]
        for part in ("series?name=loss&buckets=10", "spans", "log?start=-100")
    )
    assert (series["total"], spans["ranks"], log["text"], log["attempt"]) == (0, [], "", 0)


def test_spans_name_the_step_they_are_of(client: Client, alice: Any) -> None:
    run, headers = factory.finished(alice), bearer(alice, Scope.READ)
    for query in ("", "?step=10"):
        data = client.get(f"/api/v1/runs/{run.pk}/spans{query}", headers=headers).json()["data"]
        assert data["step"] == 10 and data["shown"] > 0


def test_a_worker_token_fetches_corpora_and_resumes(client: Client, alice: Any, admin: Any) -> None:
    data = b"once upon a time" * 40_000
    sha = hashlib.sha256(data).hexdigest()
    default_storage.save(f"corpora/{sha}", ContentFile(data))
    Corpus.objects.create(sha256=sha, name="story", size=len(data), owner=alice)
    address, headers = f"/api/v1/blobs/{sha}", bearer(admin, Scope.WORKER)
    assert client.get(address, headers=bearer(alice, Scope.READ)).status_code == 403
    whole = client.get(address, headers=headers)
    assert getattr(whole, "is_async", False), "or it would be in memory as a whole"
    assert received(whole) == data
    rest = client.get(address, headers=headers | {"Range": "bytes=600000-"})
    assert rest.status_code == 206
    assert received(rest) == data[600_000:]
    assert client.get(address, headers=headers | {"Range": f"bytes={len(data)}-"}).status_code == 416


def test_studies_and_workers(client: Client, alice: Any, two_cpus: Worker) -> None:
    from dashboard.studies.models import Study

    study = Study.objects.create(name="s", owner=alice)
    run = services.submit(owner=alice, spec=TINY, study=study)
    headers = bearer(alice, Scope.READ)
    assert client.get("/api/v1/studies", headers=headers).json()["data"][0]["runs"] == {"queued": 1}
    members = client.get(f"/api/v1/studies/{study.pk}", headers=headers).json()["data"]["members"]
    assert [row["id"] for row in members] == [run.pk]
    assert len(client.get("/api/v1/workers", headers=headers).json()["data"][0]["devices"]) == 2


def test_a_corpus_is_uploaded_listed_and_trained_on(client: Client, alice: Any, bob: Any, two_cpus: Worker) -> None:
    def send(data: bytes, user: Any = alice, name: str = "story.txt") -> Any:
        upload = SimpleUploadedFile(name, data)
        return client.post("/api/v1/corpora", {"upload": upload}, headers=bearer(user, Scope.SUBMIT))

    text = "once upon a time, Zoë\n".encode() * 50
    assert send(text, bob).status_code == 403
    made = send(text)
    assert made.status_code == 201
    assert made.json()["data"]["size"] == len(text)
    assert send(text, name="again.txt").json()["data"] == made.json()["data"]
    listed = client.get("/api/v1/corpora", headers=bearer(bob, Scope.READ)).json()
    assert (listed["meta"]["count"], listed["data"]) == (1, [made.json()["data"]])
    spec = {**TINY, "train": {**TINY["train"], "corpus": made.json()["data"]["corpus"]}}
    assert post(client, {"spec": spec}, bearer(alice, Scope.SUBMIT)).status_code == 201


@pytest.mark.parametrize("data", (b"", b"\x00\x01", b"\xff\xfe\xfa"))
def test_what_is_no_text_is_no_corpus(client: Client, alice: Any, data: bytes) -> None:
    body = {"upload": SimpleUploadedFile("odd", data)} if data else {"upload": SimpleUploadedFile("empty", b"")}
    answer = client.post("/api/v1/corpora", body, headers=bearer(alice, Scope.SUBMIT))
    assert answer.status_code == 422
    assert list(answer.json()["error"]["fields"]) == ["upload"]
    assert client.post("/api/v1/corpora", headers=bearer(alice, Scope.SUBMIT)).status_code == 422
    assert not Corpus.objects.exists()


def test_a_message_does_not_say_what_was_given_unless_it_knows(client: Client, alice: Any) -> None:
    answer = post(client, {"spec": {"train": {"lr": -1, "steps": "x"}}}, bearer(alice, Scope.SUBMIT)).json()
    said = answer["error"]["fields"]
    assert said == {"train.lr": "Must be more than 0.", "train.steps": "A whole number is needed."}


@pytest.mark.parametrize(
    ("address", "wrong"),
    [
        ("runs?limit=4", "limit"),
        ("runs?state=queued&sate=failed", "sate"),
        ("workers?name=vm", "name"),
    ],
)
def test_a_parameter_that_an_address_does_not_have_is_named(member: Client, address: str, wrong: str) -> None:
    answer = member.get(f"/api/v1/{address}")
    error = answer.json()["error"]
    assert answer.status_code == 422 and list(error["fields"]) == [wrong]
    assert error["fields"][wrong].startswith("There is no such parameter; ")
    assert member.get("/api/v1/runs?state=queued&per_page=3").status_code == 200
    assert Client().get(f"/api/v1/{address}").status_code == 401, "nothing is told before sign-in"


def test_a_field_in_the_address_of_a_request_that_changes_something_is_refused(
    client: Client, alice: Any, worker: Worker
) -> None:
    """It belongs into the body; the run was queued without it."""
    headers = bearer(alice, Scope.SUBMIT)
    answer = client.post("/api/v1/runs?retries=2", {"spec": {}}, "application/json", headers=headers)
    said = "There is no such parameter; this address has none, fields go into the body."
    assert (answer.status_code, answer.json()["error"]["fields"]) == (422, {"retries": said})
    assert not Run.objects.exists()
    assert client.post("/api/v1/runs?retries=2", {"spec": {}}, "application/json").status_code == 401
    assert client.post("/api/v1/runs", {"spec": {}}, "application/json", headers=headers).status_code == 201
