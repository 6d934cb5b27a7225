"""At its start, a worker asks the web whether its token can fetch uploaded texts."""

from __future__ import annotations

import re
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.test import Client
from django.utils import timezone

from dashboard.api.models import ApiToken, Scope, digest
from workers import corpora, preflight
from workers.contract import NO_SUCH_BLOB
from workers.settings import Settings

pytestmark = pytest.mark.django_db(transaction=True)


def of_worker(url: str, token: str, home: Any = "/tmp") -> Settings:
    given = {"TRAINYARD_URL": url, "TRAINYARD_TOKEN": token, "TRAINYARD_HOME": str(home)}
    return Settings.from_env({**given, "REDIS_URL": "redis://127.0.0.1:9/0"})


def token(user: Any, scope: str, days: int = 1) -> str:
    return ApiToken.make(user=user, name="t", scope=scope, expires_at=timezone.now() + timedelta(days=days))[1]


def test_its_own_token_is_good(live_server: Any, admin: Any) -> None:
    assert preflight.refused_token(of_worker(live_server.url, token(admin, Scope.WORKER))) == ""


def test_that_it_is_good_is_no_warning_in_the_log_of_the_web(
    client: Any, admin: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (NO_SUCH_BLOB, "a" * 64):
        bearer = {"authorization": f"Bearer {token(admin, Scope.WORKER)}"}
        assert client.get(f"/api/v1/blobs/{name}", headers=bearer).status_code == 404
    (said,) = [record.getMessage() for record in caplog.records if record.name == "django.request"]
    assert "a" * 64 in said


def test_a_token_of_one_host_is_made_and_revoked_without_touching_the_others(live_server: Any, admin: Any) -> None:
    client, secrets = Client(), []
    client.force_login(admin)
    for host in ("gpu1", "gpu2"):
        page = client.post("/accounts/tokens/", {"name": host, "scope": Scope.WORKER, "days": "365"}).content.decode()
        secrets.append(re.search(r'readonly value="([^"]+)"', page)[1])  # type: ignore[index]
    assert [preflight.refused_token(of_worker(live_server.url, secret)) for secret in secrets] == ["", ""]
    client.post(f"/accounts/tokens/{ApiToken.objects.get(name='gpu1').pk}/revoke")
    first, second = (preflight.refused_token(of_worker(live_server.url, secret)) for secret in secrets)
    assert ("revoked" in first, second) == (True, "")


@pytest.mark.parametrize("how", ["deactivated", "deleted"])
def test_a_worker_goes_on_when_the_admin_who_made_its_token_leaves(how: str, admin: Any, alice: Any) -> None:
    secret, theirs = token(admin, Scope.WORKER), token(admin, Scope.READ)
    if how == "deleted":
        admin.delete()
    else:
        admin.is_active = False
        admin.save()
    found = ApiToken.find(secret)
    assert found is not None and found.made_by == "root" and ApiToken.find(theirs) is None
    client, page = Client(), "/accounts/tokens/"
    client.force_login(alice)
    assert "Tokens of workers" not in client.get(page).content.decode()
    assert client.post(f"{page}{found.pk}/revoke").status_code == 404
    alice.is_staff = True
    alice.save()
    shown = client.get(page).content.decode()
    assert "Tokens of workers" in shown and found.start in shown and '<td class="given">root</td>' in shown
    assert client.post(f"{page}{found.pk}/revoke").status_code == 302 and ApiToken.find(secret) is None


def test_tokens_of_workers_made_by_an_older_version_are_handed_over(admin: Any, alice: Any) -> None:
    """Those of an admin who had left by then stay refused."""
    kept, gone, own = token(admin, Scope.WORKER), token(alice, Scope.WORKER), token(admin, Scope.SUBMIT)
    for user, secret in ((admin, kept), (alice, gone)):
        ApiToken.objects.filter(hashed=digest(secret)).update(user=user, made_by="")
    alice.is_active = False
    alice.save()
    import_module("dashboard.api.migrations.0004_tokens_of_workers").hand_over(apps, None)
    admin.is_active = False
    admin.save()
    assert [ApiToken.find(secret) is not None for secret in (kept, gone, own)] == [True, False, False]
    assert ApiToken.objects.get(hashed=digest(kept)).made_by == "root"


def test_what_is_wrong_with_a_token_is_told(live_server: Any, admin: Any, tmp_path: Any) -> None:
    said = {
        name: preflight.refused_token(of_worker(live_server.url, secret))
        for name, secret in {
            "none": "",
            "mistyped": "ty_mistyped",
            "expired": token(admin, Scope.WORKER, days=-1),
            "another scope": token(admin, Scope.READ),
        }.items()
    }
    assert said["none"].startswith("TRAINYARD_TOKEN is not set")
    assert said["mistyped"] == said["expired"] and "unknown there, expired or revoked" in said["expired"]
    assert said["another scope"].startswith("TRAINYARD_TOKEN is no worker's token")
    with pytest.raises(corpora.CorpusMissing, match="TRAINYARD_TOKEN is unknown there, expired or revoked"):
        corpora.fetch(of_worker(live_server.url, "ty_mistyped", tmp_path), "blob:" + "a" * 64)


def test_a_web_that_does_not_serve_the_name(live_server: Any, admin: Any, settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["yard.example.org"]
    said = preflight.refused_token(of_worker(live_server.url, token(admin, Scope.WORKER)))
    assert "does not serve the name" in said
    assert "ALLOWED_HOSTS there must have it" in said


def test_an_address_where_no_yard_is(live_server: Any, admin: Any) -> None:
    assert preflight.refused_token(of_worker("http://127.0.0.1:9", "t")).startswith(
        "TRAINYARD_URL=http://127.0.0.1:9 does"
    )
    assert preflight.refused_token(of_worker("", "t")) == "", "a worker on the web's own host needs no token"
