"""What a user or a script gets when the server itself fails: no stack trace, and no call to the part that failed."""

from __future__ import annotations

import errno
import os
import sqlite3
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from dashboard.disk_full import FULL, QUOTA, SAID, is_disk_full, why_full
from dashboard.urls import handler500

__all__ = ["handler500"]


def broken(request: HttpRequest) -> HttpResponse:
    raise ZeroDivisionError("a secret of the code")


def full(request: HttpRequest) -> HttpResponse:
    """Writes more than the database may take: on SQLite a limit of pages stands for the disk's end."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            with transaction.atomic():  # the error ends the test's own transaction otherwise
                cursor.execute("DO $$ BEGIN RAISE 'no space left' USING ERRCODE = '53100'; END $$")
        pages = cursor.execute("PRAGMA page_count").fetchone()[0]
        cursor.execute(f"PRAGMA max_page_count = {pages}")
        try:
            cursor.execute("CREATE TABLE filling AS SELECT zeroblob(1 << 26) AS filled")
        finally:
            cursor.execute("PRAGMA max_page_count = 4294967294")
    return HttpResponse()


def over_quota(request: HttpRequest) -> HttpResponse:
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


VIEWS = {"broken": broken, "full": full, "quota": over_quota}
urlpatterns = [path(at, view) for name, view in VIEWS.items() for at in (f"{name}/", f"api/v1/{name}")]


@pytest.fixture
def browser() -> Client:
    return Client(raise_request_exception=False)


@pytest.mark.urls(__name__)
def test_a_page_that_fails_says_so_without_a_stack_trace(browser: Client) -> None:
    response = browser.get("/broken/")
    assert response.status_code == 500
    assert "Something broke on our side" in response.content.decode()
    assert "secret" not in response.content.decode()


@pytest.mark.urls(__name__)
def test_the_api_fails_in_its_own_shape(browser: Client) -> None:
    response = browser.get("/api/v1/broken")
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")


@pytest.mark.urls(__name__)
def test_a_full_disk_is_told_from_a_database_that_is_away(
    browser: Client, bob: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not pass by itself: no script is told to ask again in a moment."""
    browser.force_login(bob)
    page, answer = browser.get("/full/"), browser.get("/api/v1/full")
    assert (page.status_code, answer.status_code) == (503, 503)
    assert "The disk of the server is full" in page.content.decode()
    assert answer.json()["error"]["message"] == SAID.format(why=FULL)
    assert "Retry-After" not in page and "Retry-After" not in answer
    said = [record.getMessage() for record in caplog.records if record.name == "django.request"]
    assert [text.startswith(f"{FULL}: ") for text in said] == [True, True]


@pytest.mark.urls(__name__)
def test_a_quota_that_is_used_up_is_not_told_as_a_full_disk(browser: Client, bob: Any) -> None:
    """Whoever then looks at the disk finds room on it."""
    browser.force_login(bob)
    page, answer = browser.get("/quota/").content.decode(), browser.get("/api/v1/quota")
    assert QUOTA in page and "is full" not in page
    assert answer.json()["error"]["message"] == SAID.format(why=QUOTA)


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), FULL),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), QUOTA),
        (psycopg.errors.DiskFull("could not extend file"), FULL),
        (psycopg.errors.InternalError_('could not extend file "base/5/1259": Disk quota exceeded'), QUOTA),
        (psycopg.errors.IoError("could not write to file: Disk quota exceeded"), QUOTA),
        (psycopg.errors.InternalError_("cache lookup failed for relation 7"), ""),
        (psycopg.errors.CheckViolation("the name 'Disk quota exceeded'"), ""),
        (OSError(errno.ENOENT, "No such file"), ""),
        (psycopg.errors.AdminShutdown("terminating connection"), ""),
        (sqlite3.OperationalError("database is locked"), ""),
    ],
)
def test_which_errors_mean_a_full_disk(cause: Exception, why: str) -> None:
    wrapped = OperationalError("as Django raises it")
    wrapped.__cause__ = cause
    for error in (cause, wrapped):
        assert (why_full(error) if is_disk_full(error) else "") == why


@pytest.mark.usefixtures("no_database")
def test_a_database_that_is_away_is_named(browser: Client) -> None:
    browser.cookies["sessionid"] = "of an earlier visit"
    response = browser.get("/runs/")
    assert response.status_code == 503
    assert "The database does not answer" in response.content.decode()
    assert int(response["Retry-After"]) > 0


@pytest.mark.usefixtures("no_database")
def test_the_api_names_it_too(browser: Client) -> None:
    response = browser.get("/api/v1/runs", headers={"authorization": "Bearer " + "x" * 40})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")


@pytest.mark.usefixtures("no_database")
@pytest.mark.parametrize("address", ["/runs/", "/api/v1/runs"])
def test_the_log_gets_one_line_of_it(browser: Client, caplog: pytest.LogCaptureFixture, address: str) -> None:
    browser.cookies["sessionid"] = "of an earlier visit"
    browser.get(address, headers={"authorization": "Bearer " + "x" * 40})
    (said,) = [record for record in caplog.records if record.name == "django.request"]
    assert said.getMessage().startswith("The database does not answer: ")
    assert not said.exc_info
