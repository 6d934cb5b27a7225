"""What a user or a script gets when the server itself fails: no stack trace, and no call to the part that failed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from pytest_django.plugin import DjangoDbBlocker

from dashboard.urls import handler500

__all__ = ["handler500"]


def broken(request: HttpRequest) -> HttpResponse:
    raise ZeroDivisionError("a secret of the code")


urlpatterns = [path("broken/", broken), path("api/v1/broken", broken)]


@pytest.fixture
def browser() -> Client:
    return Client(raise_request_exception=False)


@pytest.fixture
def no_database(tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Makes the default database a file that cannot be opened."""
    before = connections["default"]
    with django_db_blocker.unblock():
        away = connections.create_connection("default")
        away.settings_dict = {**away.settings_dict, "NAME": os.fspath(tmp_path / "no folder" / "yard.sqlite3")}
        connections["default"] = away
        try:
            yield
        finally:
            connections["default"] = before


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
