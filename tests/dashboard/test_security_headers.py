"""What keeps a page from running what is not ours, on every page and on those that say what went wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import Client

from tests.dashboard.database_file import ROOT, env_of
from tests.dashboard.test_accounts import addresses

pytestmark = pytest.mark.django_db
HEADERS = {"X-Frame-Options": "DENY", "Referrer-Policy": "same-origin", "X-Content-Type-Options": "nosniff"}
SECURE = """
import json, django
from django.conf import settings
django.setup()
names = ["SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SESSION_COOKIE_HTTPONLY", "SECURE_PROXY_SSL_HEADER"]
print(json.dumps([getattr(settings, name) for name in names]))
"""


def lacking(answer: Any) -> list[str]:
    """The headers that the response has not, or with another value."""
    policy = answer.headers.get("Content-Security-Policy", "")
    parts = dict(part.strip().split(" ", 1) for part in policy.split(";") if " " in part.strip())
    loose = [part for part in ("default-src", "script-src") if "unsafe" in parts.get(part, "") or "*" in policy]
    absent = [name for name, value in HEADERS.items() if answer.headers.get(name) != value]
    return [*absent, *loose, *(["Content-Security-Policy"] if "default-src" not in parts else [])]


def test_every_address_has_them(client: Client) -> None:
    assert {address: found for address in addresses() if (found := lacking(client.get(address)))} == {}


@pytest.mark.parametrize("address", ["/studies/", "/runs/new/", "/schedules/", "/accounts/tokens/", "/no/such/page"])
def test_pages_have_them(member: Client, address: str) -> None:
    answer = member.get(address)
    assert answer.status_code == (404 if "no" in address.split("/")[1:2] else 200)
    assert lacking(answer) == []


def test_a_page_that_failed_has_them(member: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> HttpResponse:
        raise RuntimeError("on purpose")

    monkeypatch.setattr("dashboard.studies.list_views.render", fails)
    member.raise_request_exception = False
    answer = member.get("/studies/")
    assert answer.status_code == 500 and lacking(answer) == []


@pytest.mark.parametrize(
    ("https", "secure"),
    [("1", [True, True, True, ["HTTP_X_FORWARDED_PROTO", "https"]]), ("", [False, False, True, None])],
)
def test_behind_a_proxy_with_tls_cookies_go_by_tls_alone(https: str, secure: list[Any], tmp_path: Path) -> None:
    env = env_of(tmp_path, f"unix://{tmp_path}/none.sock") | {"HTTPS": https}
    done = subprocess.run([sys.executable, "-c", SECURE], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == secure
