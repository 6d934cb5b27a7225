"""The `prepare` process, which runs before the others of a deployment: what it creates, and that it can be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.contrib.auth import authenticate, get_user_model
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.utils import timezone

from dashboard.api.models import WORKER_USER, ApiToken, Scope
from dashboard.control.tidying import _applied
from dashboard.runs.models import Attempt
from dashboard.yard.prepare import (
    finish_deletions_before_remakes,
    keep_worker_token,
    make_admin,
    prepare,
    refuse_newer_schema,
    sign_in_now,
)
from dashboard.yard.sign_in import CHOSEN, NO_ADMIN
from tests.dashboard import factory

SECRET = "a-long-random-worker-secret"
BLOB = f"/api/v1/blobs/{'0' * 64}"

pytestmark = pytest.mark.django_db


def bearer(secret: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer {secret}"}}


def test_the_checks_that_no_start_waits_for_find_nothing() -> None:
    import_module("dashboard.urls")  # with it the admin's pages are there to be checked
    call_command("check", fail_level="WARNING")


def test_the_token_opens_corpora_and_nothing_else(client: Client) -> None:
    keep_worker_token(SECRET)
    assert client.get(BLOB, **bearer(SECRET)).status_code == 404
    assert client.get(BLOB, **bearer(SECRET + "x")).status_code == 401
    assert client.get("/api/v1/runs", **bearer(SECRET)).status_code == 403


def test_only_its_hash_is_stored_and_nobody_signs_in_as_its_owner() -> None:
    keep_worker_token(SECRET)
    token = ApiToken.objects.get()
    assert token.scope == Scope.WORKER
    assert all(SECRET not in str(value) for value in vars(token).values())
    assert token.user.username == WORKER_USER
    assert not token.user.has_usable_password() and not token.user.is_staff


def test_again_is_the_same_and_a_new_secret_revokes_the_old(client: Client) -> None:
    keep_worker_token(SECRET)
    first = ApiToken.objects.get()
    keep_worker_token(SECRET)
    assert ApiToken.objects.get().pk == first.pk
    keep_worker_token(SECRET + "-2")
    assert client.get(BLOB, **bearer(SECRET)).status_code == 401
    assert client.get(BLOB, **bearer(SECRET + "-2")).status_code == 404


def test_a_new_secret_revokes_none_that_an_admin_made(admin: Any) -> None:
    expires = timezone.now() + timedelta(days=1)
    _, secret = ApiToken.make(user=admin, name="WORKER_TOKEN", scope=Scope.WORKER, expires_at=expires)
    admin.delete()
    for text in (SECRET, SECRET + "-2"):
        keep_worker_token(text)
    assert ApiToken.find(secret) and not ApiToken.find(SECRET)


def test_a_worker_s_token_is_accepted_though_its_account_is_inactive(admin: Any) -> None:
    """What shuts a worker off is to revoke its token."""
    expires = timezone.now() + timedelta(days=1)
    token, secret = ApiToken.make(user=admin, name="gpu1", scope=Scope.WORKER, expires_at=expires)
    type(admin).objects.filter(username=WORKER_USER).update(is_active=False)
    assert ApiToken.find(secret) == token
    token.delete()
    assert ApiToken.find(secret) is None


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(SystemExit, match="WORKER_TOKEN has 6 characters"):
        keep_worker_token("secret")
    assert not ApiToken.objects.exists()


def test_a_database_that_a_newer_version_changed_is_refused() -> None:
    """Django's `migrate` says nothing about it, and columns that this version does not fill would fail each INSERT."""
    applied = MigrationRecorder(connection)
    applied.record_applied("auth", "9999_of_django")
    refuse_newer_schema()
    applied.record_applied("runs", "9999_a_column")
    with pytest.raises(SystemExit, match=r"it lacks runs 9999_a_column\).*docs/deploy\.md"):
        prepare("")
    assert not get_user_model().objects.exists()


@pytest.fixture
def before_notes(deleted_run: Attempt) -> Iterator[None]:
    """The database as it was before runs had notes, with what is left of a deleted run."""
    call_command("migrate", "runs", "0026", verbosity=0)
    yield
    call_command("migrate", verbosity=0)


@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="PostgreSQL changes tables in place")
def test_what_is_left_of_a_deleted_run_never_gets_another_one_of_its_number(
    before_notes: None, alice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.yard.prepare.collect_static", lambda: None)
    applied = _applied(MigrationLoader(connection))
    assert not hasattr(applied.get_model("runs", "Run"), "notes"), "columns that are to come are not asked for"
    prepare("first-secret")
    run = factory.queued(alice)
    assert not Attempt.every.filter(run=run.pk).exists() and not Attempt.every.exists()


def test_a_start_that_migrates_nothing_leaves_deletions_to_the_controller(deleted_run: Attempt) -> None:
    finish_deletions_before_remakes()
    assert Attempt.every.exists()


def test_a_start_is_not_held_up_by_the_check_of_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    make_admin("first-secret")
    monkeypatch.setattr("django.contrib.auth.hashers.verify_password", None)
    make_admin("first-secret")
    make_admin("")


def test_the_admin_is_made_once_and_keeps_its_password() -> None:
    with pytest.raises(SystemExit, match="ADMIN_PASSWORD"):
        make_admin("")
    make_admin("first-secret")
    make_admin("second-secret")
    assert (sign_in_now("first-secret"), sign_in_now("second-secret")) == ("", CHOSEN)
    assert authenticate(username="admin", password="first-secret") is not None
    assert get_user_model().objects.count() == 1


@pytest.mark.parametrize("what", ["renamed", "deleted", "deactivated", "demoted"])
def test_an_admin_who_is_gone_does_not_come_back_with_the_first_password(what: str) -> None:
    make_admin("first-secret")
    users = get_user_model().objects
    if what != "renamed":
        users.create_superuser("anna", password="annas-secret")
    admin = users.get(username="admin")
    admin.username = "anna" if what == "renamed" else "admin"
    admin.is_active, admin.is_superuser = what != "deactivated", what != "demoted"
    admin.save()
    if what == "deleted":
        admin.delete()
    before = list(users.values("username", "is_active", "is_superuser"))
    make_admin("first-secret")
    make_admin("")
    assert list(users.values("username", "is_active", "is_superuser")) == before
    assert sign_in_now("first-secret") == ("" if what == "demoted" else NO_ADMIN)


def test_a_demoted_admin_stays_one_even_where_no_superuser_is_left() -> None:
    make_admin("first-secret")
    get_user_model().objects.update(is_superuser=False)
    make_admin("second-secret")
    assert not get_user_model().objects.filter(is_superuser=True).exists()
