"""Who may change something, tried at every address of the site and with every operation of the API."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.core import serializers
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from dashboard.accounts.roles import make_member
from dashboard.analyst.models import Search
from dashboard.api.auth import READ
from dashboard.api.models import ApiToken, Scope
from dashboard.api.v1 import api
from dashboard.fleet.models import Worker
from dashboard.ledger.models import Prediction, Profile, ProfileState
from dashboard.runs.models import Corpus, Run
from dashboard.studies.models import Study
from dashboard.traces.models import Trace
from parallel_core.spec import RunSpec
from tests.dashboard.test_accounts import OPEN, addresses

pytestmark = pytest.mark.django_db
OWN = (*OPEN, "/accounts/logout/", "/accounts/password/", "/accounts/tokens/")
"""Where a viewer changes what is only his own."""
ASKING = {"/": 302, "/partition/graph/": 422}
"""Where a POST leads on, or asks a question that everybody may ask."""
THEIRS = {
    "/runs/cancel": {"runs": 1},
    "/runs/delete": {"runs": 1},
    "/runs/free-space": {"runs": 1},
    "/partition/recalibrate": {"fit": 1},
}
"""What a form names that is alice's, where the address does not."""
OF_MEMBERS = ASKING | {
    "/runs/new/": 422,
    "/runs/new/check": 200,
    "/runs/new/spec": 422,
    "/runs/cancel": 302,
    "/runs/delete": 200,
    "/runs/free-space": 302,
    "/runs/links": 302,
    "/partition/profile": 302,
    "/searches/1/again": 302,
    "/traces/new/": 422,
    "/studies/new/": 422,
}
"""Where a POST of any member is taken: what begins something, and what leaves alone those of others that are ticked."""
BODIES: dict[str, dict[str, Any]] = {
    "/api/v1/runs": {"spec": {}},
    "/api/v1/runs/{run_id}/generate": {"prompt": "a"},
    "/api/v1/runs/{run_id}/free-space": {"profiles": True},
    "/api/v1/studies/{study_id}/again": {"which": "repeatable"},
    "/api/v1/links": {"first": "yard-a", "second": "yard-b"},
    "/api/v1/studies": {"name": "s", "runs": [{"label": "a", "spec": {}}]},
}
"""Valid bodies, since an invalid one may be refused for that alone."""
UNGUARDED = "An operation that changes something has auth=SUBMIT, and calls require_member or a service that asks."
SENT = "One that reads a body: is a valid one in BODIES?"
NOBODYS = "One that begins something of the asker's own: is it in BEGINNING?"
"""What to do about a new operation that fails here."""
METHODS = ("get", "post", "put", "patch", "delete")
OPERATIONS = [
    (method, path) for path, item in api.get_openapi_schema()["paths"].items() for method in METHODS if method in item
]


@pytest.fixture
def things(alice: Any) -> None:
    """One of everything that belongs to alice, under the number 1 that the addresses have."""
    Worker.objects.create(pk=1, name="yard-a", host="localhost", boot="b1", heartbeat_at=timezone.now())
    study = Study.objects.create(pk=1, owner=alice, name="hers")
    spec = RunSpec().model_dump(mode="json")
    Run.objects.create(pk=1, owner=alice, study=study, name="hers", spec=spec, queued_at=timezone.now())
    profile = {"spec": spec, "key": "k", "asked_by": alice, "worker_id": 1}
    Profile.objects.create(pk=1, **profile)
    Profile.objects.create(pk=2, **profile, state=ProfileState.DONE, recalibration={"factor": 1.1})
    made = {"seconds": 0.1, "measured_seconds": 0.2, "settled_at": timezone.now()}
    Prediction.objects.create(pk=1, run_id=1, profile_id=2, **made)
    Trace.objects.create(pk=1, owner=alice, name="hers")
    Search.objects.create(pk=1, kind="splits", key="k", question={}, asker=alice)
    Corpus.objects.create(pk=1, owner=alice, name="hers", sha256="0" * 64, size=3)
    ApiToken.objects.filter(pk=token(alice, Scope.SUBMIT)[0].pk).update(id=1, name="hers")


@pytest.fixture
def carol(django_user_model: Any) -> Any:
    """A second member."""
    return make_member(django_user_model.objects.create_user("carol"))


def token(user: Any, scope: Scope) -> tuple[ApiToken, str]:
    return ApiToken.make(user=user, name="t", scope=scope, expires_at=timezone.now() + timedelta(days=1))


def changing() -> list[str]:
    """The addresses at which somebody may change more than what is only their own."""
    return [address.replace("recalibrated/1/", "recalibrated/2/") for address in addresses() if address not in OWN]


def each() -> dict[tuple[str, Any], str]:
    """(Model, key) -> each row of the dashboard's own tables."""
    listed = {name: json.loads(text) for name, text in rows().items()}
    return {(name, row["pk"]): json.dumps(row["fields"]) for name, found in listed.items() for row in found}


def rows() -> dict[str, str]:
    """All rows of the dashboard's own tables."""
    ours = [model for model in apps.get_models() if model.__module__.startswith("dashboard.")]
    return {model.__name__: serializers.serialize("json", model._default_manager.order_by("pk")) for model in ours}


@pytest.mark.usefixtures("things")
def test_a_viewer_changes_nothing_at_any_address(client: Client, bob: Any, redis_url: str) -> None:
    client.force_login(bob)
    before = rows()
    tried = changing()
    assert len(tried) > 60
    answers = {address: client.post(address).status_code for address in tried}
    assert {address: status for address, status in answers.items() if status not in {403, 404, 405}} == ASKING
    assert rows() == before


@pytest.mark.usefixtures("things")
def test_a_member_changes_nothing_of_somebody_else_at_any_address(client: Client, carol: Any, redis_url: str) -> None:
    client.force_login(carol)
    before = each()
    answers = {address: client.post(address, THEIRS.get(address, {})).status_code for address in changing()}
    assert {address: status for address, status in answers.items() if status not in {403, 404, 405}} == OF_MEMBERS
    after = each()
    assert [row for row, was in before.items() if after.get(row) != was] == []


def ask(client: Client, method: str, path: str, secret: str = "") -> Any:
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    address = re.sub(r"\{\w+_id\}", "1", path.replace("{sha256}", "0" * 64))
    if path in ("/api/v1/corpora", "/api/v1/traces") and method == "post":
        file = SimpleUploadedFile("a.txt", b"some text")
        sent = {"upload": file} if path.endswith("corpora") else {"files": file, "name": "x"}
        return client.post(address, sent, headers=headers)
    body = BODIES.get(path) if method == "post" else {} if method == "patch" else None
    text = "" if body is None else json.dumps(body)
    return client.generic(method.upper(), address, text, "application/json", headers=headers)


@pytest.mark.usefixtures("things")
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_operation_answers_without_a_token(client: Client, method: str, path: str) -> None:
    before = rows()
    assert ask(client, method, path).status_code == 401
    assert ask(client, method, path, "ty_unknown").status_code == 401
    assert rows() == before


def test_an_operation_that_says_nothing_of_tokens_needs_one() -> None:
    assert api.auth is READ


CHANGING = [(method, path) for method, path in OPERATIONS if method != "get"]


@pytest.mark.usefixtures("things")
@pytest.mark.parametrize(("method", "path"), CHANGING)
def test_neither_a_token_to_read_nor_a_viewers_changes_anything(
    client: Client, alice: Any, bob: Any, method: str, path: str
) -> None:
    secrets = [token(alice, Scope.READ)[1], token(bob, Scope.SUBMIT)[1]]
    before = rows()
    answers = [ask(client, method, path, secret).status_code for secret in secrets]
    assert answers == [403, 403], f"{UNGUARDED} {SENT}"
    after = rows()
    assert {name for name in before if before[name] != after[name]} <= {"ApiToken"}, "it may note when it was used"
    assert Run.objects.get().state == "queued"


BEGINNING = {"runs": 201, "runs/{run_id}/generate": 422, "corpora": 201, "traces": 201, "links": 422, "studies": 201}
"""Operations that begin something of the asker's own (422: with a run and with hosts that are no good for it)."""


@pytest.mark.usefixtures("things", "no_files")
@pytest.mark.parametrize(("method", "path"), CHANGING)
def test_a_members_token_changes_nothing_of_somebody_else(client: Client, carol: Any, method: str, path: str) -> None:
    secret, before = token(carol, Scope.SUBMIT)[1], each()
    begins = BEGINNING.get(path.removeprefix("/api/v1/"), 403) if method == "post" else 403
    assert ask(client, method, path, secret).status_code == begins, f"{SENT} {NOBODYS}"
    after = each()
    assert [row for row, was in before.items() if after.get(row) != was] == []
