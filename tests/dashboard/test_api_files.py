"""Files that pages offer, fetched by a script with a token; and who may read the schema."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import Resolver404, resolve

from dashboard.accounts.guards import token_may_read
from dashboard.api import v1
from dashboard.api.models import ApiToken, Scope
from dashboard.studies.models import Study
from tests.dashboard import factory
from tests.dashboard.streamed_body import received
from tests.dashboard.test_accounts import addresses
from tests.dashboard.test_api import bearer

pytestmark = pytest.mark.django_db
FILES = (
    "/runs/export.csv",
    "/runs/export.json",
    "/runs/{run}/data/series.json",
    "/runs/{run}/part/series-csv",
    "/runs/{run}/log/0.txt",
    "/runs/{run}/trace/10/chrome",
    "/runs/{run}/trace/10/csv",
    "/runs/{run}/report/",
    "/studies/{study}/table.csv",
    "/studies/{study}/report/",
    "/planner/plans.csv?model=gpt-125m&devices=2&batch=16",
    "/planner/plans.json?model=gpt-125m&devices=2&batch=16",
    "/schedules/order-a.csv",
    "/schedules/order-b.json",
)


@pytest.fixture
def files(alice: Any, redis_url: str) -> list[str]:
    study = factory.study(alice, splits=({}, {"dp": 2}), recompute=False)
    return [path.format(run=study.baseline_id, study=study.pk) for path in FILES]


def test_a_token_that_may_read_gets_the_files_of_pages(client: Client, files: list[str], bob: Any) -> None:
    headers, signed_in = bearer(bob, Scope.READ), Client()
    signed_in.force_login(bob)
    for path in files:
        fetched, seen = client.get(path, headers=headers), signed_in.get(path)
        assert (fetched.status_code, seen.status_code) == (200, 200), path
        if fetched.streaming:
            assert received(fetched) == received(seen), path
        if path.startswith("/runs/"):
            assert client.head(path, headers=headers).status_code == 200, path
    assert not client.session.keys(), "a token opens no session"


def test_what_is_no_token_to_read_gets_no_file(client: Client, files: list[str], alice: Any, bob: Any) -> None:
    revoked = bearer(alice, Scope.READ)
    ApiToken.objects.all().delete()
    wrong = {401: [revoked, bearer(alice, Scope.READ, days=-1)], 403: [bearer(alice, Scope.WORKER)]}
    for path in files:
        for status, several in wrong.items():
            for headers in several:
                answer = client.get(path, headers=headers)
                assert (answer.status_code, set(answer.json())) == (status, {"error"}), path
        assert client.get(path).headers["Location"].startswith("/accounts/login/"), path
    client.force_login(bob)
    assert client.get(files[0], headers=revoked).status_code == 401, "a bad token does not fall back to the cookie"
    assert client.get(files[0], headers={"Authorization": "Basic YTpi"}).status_code == 200, "of a proxy in front"


def test_a_token_reads_files_and_sends_nothing_to_their_addresses(client: Client, files: list[str], alice: Any) -> None:
    for path in files:
        answer = client.post(path, headers=bearer(alice, Scope.SUBMIT))
        assert answer.headers["Location"].startswith("/accounts/login/"), path


def test_a_token_opens_nothing_else(client: Client, alice: Any) -> None:
    """Neither pages nor whatever changes something, also where a file is read."""
    headers = bearer(alice, Scope.SUBMIT)
    for address in addresses():
        if address == "/live/stream":
            continue  # it authenticates itself, and closes the connection that holds the test's transaction
        try:
            opened = getattr(resolve(address).func, "token_may_read", False)
        except Resolver404:
            continue
        tried = ("post",) if opened else ("get", "post")
        for method in tried:
            answer = getattr(client, method)(address, headers=headers)
            signed_out = (302, 401, 403, 405) if address != "/accounts/login/" else (200,)
            assert answer.status_code in signed_out, (method, address)
    assert not Study.objects.exists()


def test_the_mark_is_outermost() -> None:
    def view() -> None: ...

    assert token_may_read(view) is view  # type: ignore[type-var]


def test_the_schema_is_for_those_who_may_read(client: Client, alice: Any, bob: Any) -> None:
    address = "/api/v1/openapi.json"
    assert client.get(address).status_code == 401
    assert client.get(address, headers=bearer(alice, Scope.WORKER)).status_code == 403
    told = client.get(address, headers=bearer(bob, Scope.READ))
    assert told.status_code == 200 and told.headers["Content-Type"] == "application/json"
    assert "/api/v1/runs" in told.json()["paths"] and address not in told.json()["paths"]


def test_the_schema_is_made_once(member: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    member.get("/api/v1/openapi.json")

    def again(*_: Any, **__: Any) -> Any:
        raise AssertionError("the schema is made again")

    monkeypatch.setattr(v1.api, "get_openapi_schema", again)
    for address in ("/api/v1/openapi.json", "/api/"):
        assert member.get(address).status_code == 200
