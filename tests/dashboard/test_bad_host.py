"""A request with a Host header that this yard does not serve: a page that names the setting, and one line in the
log.
"""

from __future__ import annotations

import logging

import pytest
from django.test import Client, override_settings


@override_settings(ALLOWED_HOSTS=["yard.example"])
@pytest.mark.parametrize("path", ("/", "/runs/", "/accounts/login/"))
def test_an_unknown_host_gets_a_page_that_names_the_setting(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        response = Client(raise_request_exception=False).get(path, headers={"host": "other.example:8000"})
    page = response.content.decode()
    assert response.status_code == 400
    assert "other.example" in page and "ALLOWED_HOSTS" in page and "<h1>" in page
    (line,) = caplog.records
    assert line.levelno == logging.WARNING and line.exc_info is None
    assert "'other.example'" in line.getMessage() and "ALLOWED_HOSTS" in line.getMessage()


@override_settings(ALLOWED_HOSTS=["yard.example"])
def test_a_script_gets_the_same_as_json() -> None:
    response = Client().get("/api/v1/runs", headers={"host": "other.example"})
    assert response.status_code == 400
    assert "ALLOWED_HOSTS" in response.json()["error"]["message"]


@override_settings(ALLOWED_HOSTS=["yard.example"])
def test_a_host_that_is_no_name_is_said_as_it_came_but_is_no_markup() -> None:
    page = Client().get("/", headers={"host": "<b>x</b>"}).content.decode()
    assert "ALLOWED_HOSTS" in page and "<b>x" not in page and "&lt;b&gt;x" in page
