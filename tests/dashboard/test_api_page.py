"""The API documentation page: it lists every operation, and the commands it shows work."""

from __future__ import annotations

import json
import re
import shlex
from datetime import timedelta
from fnmatch import fnmatch
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.api.models import ApiToken, Scope
from dashboard.api.v1 import api
from dashboard.studies.table import COLUMNS
from tests.dashboard import factory

pytestmark = pytest.mark.django_db
DOCS = (Path(__file__).parents[2] / "docs/api.md").read_text()


@pytest.fixture(autouse=True)
def broker(redis_url: str) -> None:
    """Announcements need a broker."""


def page(client: Client) -> str:
    answer = client.get("/api/")
    assert answer.status_code == 200
    return answer.content.decode()


def commands(said: str) -> list[list[str]]:
    """The arguments of each command on the page."""
    return [shlex.split(unescape(one)) for one in re.findall(r'aria-label="Command">(.+?)</pre>', said)]


def test_every_operation_that_people_use_is_there(reader: Client) -> None:
    said = page(reader)
    for path, methods in api.get_openapi_schema()["paths"].items():
        for method in methods:
            assert (f"{method.upper()} {path}<" in said) == ("/blobs/" not in path)


def test_who_may_only_look_is_told_which_operations_are_refused(reader: Client, member: Client) -> None:
    told = "POST, PATCH and DELETE are refused"
    assert told in page(reader) and told not in page(member)
    refused = reader.post("/api/v1/runs", {"spec": {}}, content_type="application/json")
    assert refused.status_code == 403 and "viewer" in refused.json()["error"]["message"]


def test_the_page_of_the_docs_names_operations_that_there_are() -> None:
    named = re.findall(r"`(GET|POST|PATCH|DELETE) (/[^`?]+)[^`]*`", DOCS)
    there = api.get_openapi_schema()["paths"]
    ways = {(method.upper(), re.sub(r"\{[^}]+\}", "ID", path)) for path, methods in there.items() for method in methods}
    assert len(named) > 10 and not {(how, f"/api/v1{path.replace('SHA256', 'ID')}") for how, path in named} - ways


def test_the_page_of_the_docs_explains_every_column_of_a_study() -> None:
    rows = re.findall(r"^\| (`.+?`) \|", DOCS.partition("## Columns of table.csv")[2], re.MULTILINE)
    told = [name for row in rows for name in re.findall(r"`([\w*]+)`", row)]
    without = [column for column in COLUMNS if not any(fnmatch(column, name) for name in told)]
    assert not without, f"the table in docs/api.md lacks {', '.join(without)}"
    assert all(any(fnmatch(column, name) for column in COLUMNS) for name in told)


def test_limits_are_said_in_words(reader: Client) -> None:
    said = page(reader)
    assert "integer, 1 to 500, else 50" in said and "e+" not in re.sub(r"<pre.+?</pre>", "", said, flags=re.DOTALL)
    assert "what is trained and how" in said and "model_validate" not in said


def test_a_number_is_not_broken_over_two_lines(reader: Client) -> None:
    said = page(reader)
    assert "at most 20\xa0000 spans" in said and "at most 20 000 spans" not in said


def test_on_a_phone_a_sentence_is_scrolled_to_not_folded_into_single_words(reader: Client) -> None:
    assert '<td class="said">what is trained and how' in page(reader)


def test_strangers_are_sent_to_the_sign_in(client: Client) -> None:
    assert client.get("/api/").headers["Location"].startswith("/accounts/login/")


def test_it_is_linked_from_the_menu_and_the_tokens(reader: Client) -> None:
    assert reader.get("/accounts/tokens/").content.decode().count('href="/api/"') == 2


def test_its_commands_are_answered(client: Client, alice: Any) -> None:
    """Runs the commands with a token instead of the session, as a script would. Commands with file uploads are skipped,
    because the page cannot name a file.
    """
    run = factory.finished(alice)
    client.force_login(alice)
    asked = commands(page(client))
    expires = timezone.now() + timedelta(days=1)
    _, secret = ApiToken.make(user=alice, name="script", scope=Scope.SUBMIT, expires_at=expires)
    seen: dict[str, int] = {}
    for words in asked:
        method = words[words.index("-X") + 1] if "-X" in words else "POST" if "-d" in words else "GET"
        path = words[-1].removeprefix("http://testserver")
        if "-F" in words or "{" in path or "/traces/" in path or "/studies/" in path:
            continue
        body = words[words.index("-d") + 1] if "-d" in words else ""
        headers = {"authorization": f"Bearer {secret}"}
        answer = Client().generic(method, path, body, "application/json", headers=headers)
        seen[f"{method} {path}"] = answer.status_code
    assert seen["POST /api/v1/runs"] == 201 and seen[f"GET /api/v1/runs/{run.pk}/series"] == 200
    assert seen.pop(f"POST /api/v1/runs/{run.pk}/generate") == 422  # the run saved no checkpoint
    assert seen.pop(f"POST /api/v1/runs/{run.pk}/free-space") == 422  # the run has just ended
    assert seen.pop("POST /api/v1/links") == 422  # it names hosts that the user has to choose
    assert set(seen.values()) <= {200, 201} and len(seen) >= 10
    gone = [words[-1] for words in asked if "DELETE" in words]
    # pasting a DELETE command unchanged deletes nothing
    assert gone and all(address.endswith("}") for address in gone)


def test_valid_tokens_are_named_and_never_shown(client: Client, alice: Any, bob: Any) -> None:
    now = timezone.now()
    _, secret = ApiToken.make(user=alice, name="<i>mine</i>", scope=Scope.READ, expires_at=now + timedelta(days=1))
    ApiToken.make(user=alice, name="old one", scope=Scope.READ, expires_at=now - timedelta(days=1))
    ApiToken.make(user=bob, name="of bob", scope=Scope.READ, expires_at=now + timedelta(days=1))
    client.force_login(alice)
    said = page(client)
    assert "You have 1 token:" in said and "&lt;i&gt;mine&lt;/i&gt;" in said
    assert secret not in said and "old one" not in said and "of bob" not in said


def test_a_new_token_comes_with_a_command(client: Client, alice: Any) -> None:
    client.force_login(alice)
    made = client.post("/accounts/tokens/", {"name": "x", "scope": "read", "days": "30"}).content.decode()
    command = re.search(r'aria-label="A first command">(.+?)</pre>', made)
    assert command is not None
    words = shlex.split(unescape(command[1]))
    answer = Client().get(words[-1], headers={"authorization": words[2].removeprefix("Authorization: ")})
    assert answer.status_code == 200 and json.loads(answer.content)["data"] == []


def test_the_schema_says_which_token_is_needed() -> None:
    told = api.get_openapi_schema()["paths"]
    assert {"ReadToken": []} in told["/api/v1/runs"]["get"]["security"]
    assert {"SubmitToken": []} in told["/api/v1/runs"]["post"]["security"]
    assert told["/api/v1/blobs/{sha256}"]["get"]["security"] == [{"WorkerToken": []}]
